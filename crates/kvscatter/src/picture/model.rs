//! The content of a picture, independent of how it is drawn.

use alloc::vec::Vec;
use core::ops::Range;

use crate::visibility::Visibility;
use crate::{Argument, Mode, WritePlan};

/// The effect of a write on each sample of a cache.
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
/// The complete text without `ascii` is:
/// ```text
///                        0   4  7
/// sample  write_indices  ╷   ╷  ╷
///      0              1  ·███····  1-3
///      1              6  ▒·····██  6-7, 0
/// · old  █ written  ▒ wrapped  × skipped   1 column = 1 slot
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The number of slots of the cache along the sequence. Slots of a lane beyond this number are not drawn.
    pub capacity: usize,
    /// The number of samples of the cache. Samples without a lane are counted in the picture, but not drawn.
    pub samples: usize,
    /// The number of skipped samples, including those without a lane.
    pub skipped: usize,
    /// The operator's name for the positions.
    pub positions: Argument,
    /// The drawn samples, from top to bottom.
    pub lanes: Vec<Lane>,
}

/// One sample of a [`Picture`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The index of the sample in the batch.
    pub sample: usize,
    /// The position as the caller passed it, or `None` if the update does not have this sample.
    ///
    /// In a ring, the position may be negative or beyond the capacity.
    pub position: Option<i64>,
    /// The effect of the write on the sample.
    pub outcome: SampleOutcome,
    /// The slots that the last written token sees, in the order of their positions. Both ranges are empty
    /// unless [`Picture::visible`] has computed them.
    pub visible: [Range<usize>; 2],
}

/// The effect of a write on one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// Slots of the sample are written.
    Written {
        /// The slots from the first written one on. It is empty if no slot is written.
        first: Range<usize>,
        /// The slots from 0 on that are written after the end of a ring. It is empty if the write does not
        /// wrap.
        wrapped: Range<usize>,
    },
    /// The position of the sample is out of range, and the policy is to skip the sample.
    Skipped,
}

impl Picture {
    /// The largest number of lanes of a picture.
    pub const MAX_LANES: usize = 4096;

    /// Creates the picture of a plan. It has a lane for each of the first samples of the cache, at most `lanes`
    /// and at most [`MAX_LANES`](Self::MAX_LANES).
    ///
    /// The picture of a paged cache has a lane for each of the first tokens instead. It shows the slots of the
    /// token's block, and [`visible`](Self::visible) does not apply to it.
    #[must_use]
    pub fn new(plan: &WritePlan<'_>, lanes: usize) -> Self {
        let geometry = plan.geometry();
        if geometry.has_slots_of_tokens() {
            return Self::of_tokens(plan, lanes);
        }
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
            Lane { sample, position: plan.position(sample), outcome, visible: [0..0, 0..0] }
        };
        Self {
            capacity: geometry.capacity(),
            samples,
            skipped: plan.skipped(),
            positions: geometry.names().positions,
            lanes: (0..samples.min(lanes).min(Self::MAX_LANES)).map(&mut lane).collect(),
        }
    }

    fn of_tokens(plan: &WritePlan<'_>, lanes: usize) -> Self {
        let (geometry, samples) = (plan.geometry(), plan.batch());
        let lane = |token| {
            let position = plan.position(token);
            let slot = position.and_then(|slot| usize::try_from(slot).ok()?.checked_rem(geometry.capacity()));
            let written =
                |slot: usize| SampleOutcome::Written { first: slot..slot.saturating_add(1), wrapped: 0..0 };
            let outcome = slot.map_or(SampleOutcome::Skipped, written);
            Lane { sample: token, position, outcome, visible: [0..0, 0..0] }
        };
        Self {
            capacity: geometry.capacity(),
            samples,
            skipped: plan.skipped(),
            positions: geometry.names().positions,
            lanes: (0..samples.min(lanes).min(Self::MAX_LANES)).map(lane).collect(),
        }
    }

    /// Marks the slots that the last written token of each sample sees after the write. The rule must be for the
    /// cache of the picture.
    ///
    /// A slot that is written keeps its mark. A sample of which nothing is written, or whose position is
    /// negative, has no marks: how many tokens a ring contains does not follow from a negative position.
    ///
    /// ```
    /// use kvscatter::picture::Picture;
    /// use kvscatter::visibility::Visibility;
    /// use kvscatter::{ElementType, Mode, spec::onnx::TensorScatter};
    ///
    /// let ring = TensorScatter::new().mode(Mode::Circular);
    /// let write = ring.prepare(ElementType::Float16, &[2, 1, 8, 64], &[2, 1, 1, 64])?;
    /// let rule = Visibility::new(Mode::Circular, 8).causal().window(5);
    /// let picture = Picture::new(&write.plan(&[2, 9])?, 64).visible(rule);
    /// let text = picture.text().width(8).ascii(true).to_string();
    /// assert!(text.contains("     0              2  --#.....  2, sees 0-2\n"));
    /// assert!(text.contains("     1              9  -#...---  1, sees 5-7, 0-1\n"));
    /// # Ok::<(), kvscatter::Error>(())
    /// ```
    #[must_use]
    pub fn visible(mut self, rule: Visibility) -> Self {
        for lane in &mut self.lanes {
            let rows = lane.runs().fold(0, |rows: usize, (_, run)| rows.saturating_add(run.len()));
            let first = match (rule.mode(), &lane.outcome) {
                // Positions of a linear cache are slots. The operator's position may be another number.
                (Mode::Linear, SampleOutcome::Written { first, .. }) => i64::try_from(first.start).ok(),
                _ => lane.position,
            };
            let first = first.filter(|&first| rows > 0 && first >= 0);
            let tokens = first.and_then(|first| first.checked_add(i64::try_from(rows).ok()?));
            lane.visible = tokens
                .map_or([0..0, 0..0], |tokens| rule.slots(rule.positions(tokens, tokens.saturating_sub(1))));
        }
        self
    }

    /// Returns the marks that the legend explains.
    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> {
        let shows_visible = self.lanes.iter().any(|lane| lane.seen().next().is_some());
        Mark::ALL.into_iter().filter(move |mark| *mark != Mark::Visible || shows_visible)
    }

    pub(super) fn hidden(&self) -> usize {
        self.samples.saturating_sub(self.lanes.len())
    }
}

impl Lane {
    /// Returns the written runs and their marks. The wrapped run is last.
    pub(super) fn runs(&self) -> impl Iterator<Item = (Mark, &Range<usize>)> {
        let (first, wrapped) = match &self.outcome {
            SampleOutcome::Written { first, wrapped } => (Some(first), Some(wrapped)),
            SampleOutcome::Skipped => (None, None),
        };
        let runs = [(Mark::Written, first), (Mark::Wrapped, wrapped)];
        runs.into_iter().filter_map(|(mark, run)| Some((mark, run?))).filter(|(_, run)| !run.is_empty())
    }

    /// Returns the runs that the last written token sees.
    pub(super) fn seen(&self) -> impl Iterator<Item = &Range<usize>> {
        self.visible.iter().filter(|run| !run.is_empty())
    }

    /// Returns the mark of a column that stands for these slots. If both runs share the column, the shorter
    /// run is drawn, because the longer run is also visible in the next column.
    pub(super) fn mark(&self, slots: &Range<usize>) -> Mark {
        if self.outcome == SampleOutcome::Skipped {
            return Mark::Skipped;
        }
        let touches = |run: &Range<usize>| run.start < slots.end && slots.start < run.end;
        let written = self.runs().filter(|(_, run)| touches(run)).min_by_key(|(_, run)| run.len());
        let old = if self.seen().any(touches) { Mark::Visible } else { Mark::Old };
        written.map_or(old, |(mark, _)| mark)
    }
}

/// The ways to draw a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Old,
    /// An old slot that the last written token sees.
    Visible,
    Written,
    Wrapped,
    Skipped,
}

impl Mark {
    pub(super) const ALL: [Self; 5] = [Self::Old, Self::Visible, Self::Written, Self::Wrapped, Self::Skipped];

    pub(super) const fn glyph(self, ascii: bool) -> char {
        match (self, ascii) {
            (Self::Old, false) => '·',
            (Self::Visible, false) => '─',
            (Self::Written, false) => '█',
            (Self::Wrapped, false) => '▒',
            (Self::Skipped, false) => '×',
            (Self::Old, true) => '.',
            (Self::Visible, true) => '-',
            (Self::Written, true) => '#',
            (Self::Wrapped, true) => '=',
            (Self::Skipped, true) => 'x',
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::Visible => "visible",
            Self::Written => "written",
            Self::Wrapped => "wrapped",
            Self::Skipped => "skipped",
        }
    }
}
