//! What a picture shows, before it is drawn.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{Argument, WritePlan};

/// What a write does to a cache, sample by sample.
///
/// ```
/// use kvscatter::picture::Picture;
/// use kvscatter::{ElementType, Mode, spec::onnx::TensorScatter};
///
/// let ring = TensorScatter::new().mode(Mode::Circular);
/// let write = ring.prepare(ElementType::Float16, &[2, 1, 8, 64], &[2, 1, 3, 64])?;
/// let picture = Picture::new(&write.plan(&[1, 6])?, 64);
/// let text = picture.text().width(8).ascii(true).to_string();
/// assert!(text.contains("     0              1  .###....  1-3\n"));
/// assert!(text.contains("     1              6  =.....##  6-7, 0\n"));
/// assert!(picture.svg().to_string().starts_with("<svg"));
/// # Ok::<(), kvscatter::Error>(())
/// ```
///
/// The text in full, without `ascii`:
/// ```text
///                        0   4  7
/// sample  write_indices  ╷   ╷  ╷
///      0              1  ·███····  1-3
///      1              6  ▒·····██  6-7, 0
/// · old  █ written  ▒ wrapped  × skipped   1 column = 1 slot
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Slots of the cache along the sequence. What a lane claims beyond it is not drawn.
    pub capacity: usize,
    /// Samples of the cache; those that have no lane are counted in the picture, not drawn.
    pub samples: usize,
    /// How many of all samples are skipped.
    pub skipped: usize,
    /// What the operator calls a position.
    pub positions: Argument,
    /// The samples that are drawn, from top to bottom.
    pub lanes: Vec<Lane>,
}

/// One sample of a [`Picture`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its index in the batch.
    pub sample: usize,
    /// Its position as the caller gave it, which in a ring may be negative or beyond the capacity; `None` for
    /// a sample that the update does not have.
    pub position: Option<i64>,
    /// What happens to it.
    pub outcome: SampleOutcome,
}

/// What happens to one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// These slots are written.
    Written {
        /// From the first slot written on; empty if nothing is written.
        first: Range<usize>,
        /// Slots from 0 on, written after the end of a ring; empty if nothing wraps.
        wrapped: Range<usize>,
    },
    /// The sample's position is out of range, and the policy is to skip it.
    Skipped,
}

impl Picture {
    /// The most lanes a picture has.
    pub const MAX_LANES: usize = 4096;

    /// The picture of a plan, with a lane for each of the cache's first samples, at most `lanes` and
    /// [`MAX_LANES`](Self::MAX_LANES).
    #[must_use]
    pub fn new(plan: &WritePlan<'_>, lanes: usize) -> Self {
        let geometry = plan.geometry();
        let samples = geometry.cache_batch();
        let mut segments = plan.segments().peekable();
        let mut lane = |sample| {
            let mut run = || {
                let segment = segments.next_if(|segment| segment.sample == sample)?;
                Some(segment.slot..segment.slot.saturating_add(segment.rows))
            };
            let written = SampleOutcome::Written {
                first: run().unwrap_or_default(),
                wrapped: run().unwrap_or_default(),
            };
            let outcome = if plan.skips(sample) { SampleOutcome::Skipped } else { written };
            Lane { sample, position: plan.position(sample), outcome }
        };
        Self {
            capacity: geometry.capacity(),
            samples,
            skipped: plan.skipped(),
            positions: geometry.names().positions,
            lanes: (0..samples.min(lanes).min(Self::MAX_LANES)).map(&mut lane).collect(),
        }
    }

    pub(super) fn hidden(&self) -> usize {
        self.samples.saturating_sub(self.lanes.len())
    }
}

impl Lane {
    /// The written runs with the way each is drawn; the wrapped one last.
    pub(super) fn runs(&self) -> impl Iterator<Item = (Mark, &Range<usize>)> {
        let (first, wrapped) = match &self.outcome {
            SampleOutcome::Written { first, wrapped } => (Some(first), Some(wrapped)),
            SampleOutcome::Skipped => (None, None),
        };
        let runs = [(Mark::Written, first), (Mark::Wrapped, wrapped)];
        runs.into_iter().filter_map(|(mark, run)| Some((mark, run?))).filter(|(_, run)| !run.is_empty())
    }

    /// How a column that stands for these slots is drawn. Where both runs meet in it, the shorter one shows: the
    /// longer one is seen beside it.
    pub(super) fn mark(&self, slots: &Range<usize>) -> Mark {
        if self.outcome == SampleOutcome::Skipped {
            return Mark::Skipped;
        }
        self.runs()
            .filter(|(_, run)| run.start < slots.end && slots.start < run.end)
            .min_by_key(|(_, run)| run.len())
            .map_or(Mark::Old, |(mark, _)| mark)
    }
}

/// The four ways a slot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Old,
    Written,
    Wrapped,
    Skipped,
}

impl Mark {
    pub(super) const ALL: [Self; 4] = [Self::Old, Self::Written, Self::Wrapped, Self::Skipped];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::Written => "written",
            Self::Wrapped => "wrapped",
            Self::Skipped => "skipped",
        }
    }
}
