//! The functional form over whole-byte elements: all of a present, from a past and an update.

use super::copier::{Copier, Stores};
use super::copiers::Copiers;
use super::executor::Share;
use super::kernel::Sides;
use super::limits::{STRIP, THIN, TILE, WIDE};
use super::lines::Lines;
use crate::WritePlan;
use crate::mapping::{Block, Loop, Rows};
use crate::plan::{Sample, Source};

/// The functional form of one call.
pub(super) struct Fill<'a> {
    pub(super) copiers: &'a Copiers,
    pub(super) plan: &'a WritePlan<'a>,
    /// The present and the past.
    pub(super) past: Sides,
    /// The present and the update.
    pub(super) update: Sides,
}

impl Fill<'_> {
    /// Fills what this share has of the present.
    ///
    /// # Safety
    /// P1 for all blocks of the plan's functional form, and the present is reached through nothing else.
    pub(super) unsafe fn run(&self, share: &mut Share<'_>) {
        let mut lines = self.copiers.from_past.lines();
        self.plan.for_each_sample(|sample| match self.copiers.slabs {
            // SAFETY: the caller's.
            None => unsafe { self.around(share, &sample) },
            Some(slabs) => slabs.for_each(share, |part| match slabs.order {
                // SAFETY: the caller's.
                Order::Over => unsafe { self.over(&sample, part) },
                // SAFETY: the caller's.
                Order::Along => unsafe { self.along(&sample, part, &mut lines) },
            }),
        });
        // SAFETY: the caller's.
        unsafe { lines.finish() };
        self.copiers.present_stores.finish();
    }

    /// Where a layer's sample 0 begins in the present and in a source, and what copies from there.
    fn sides(&self, layer: usize, source: Source) -> (Sides, &Copier) {
        let (sides, copier) = match source {
            Source::Past => (self.past, &self.copiers.from_past),
            Source::Update => (self.update, &self.copiers.from_update),
        };
        (self.copiers.sides(sides, self.plan.present_bases(layer, source)), copier)
    }

    /// Copies what the sample keeps, and beside it what it receives.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn around(&self, share: &mut Share<'_>, sample: &Sample) {
        for (source, rows) in sample.pieces {
            let (sides, copier) = self.sides(sample.layer, source);
            // SAFETY: the caller's.
            unsafe { copier.copy_shared(sides, rows, self.copiers.row, self.copiers.present_stores, share) };
        }
    }

    /// Copies slabs whole, and over them what they receive, while they are close.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn over(&self, sample: &Sample, part: Part) {
        let whole = Rows { sample: sample.index, dst: 0, src: 0, count: self.plan.geometry().capacity() };
        let (sides, copier) = self.sides(sample.layer, Source::Past);
        if let Some(block) = part.block(copier, whole) {
            let run = Block { len: block.elements(), loops: [Loop::ONCE; 3], ..block };
            // SAFETY: the slabs of a sample are contiguous on both sides (`Slabs::new`), and P1.
            unsafe { copier.copy_block(sides, &run, Stores::Cached) };
        }
        let (sides, copier) = self.sides(sample.layer, Source::Update);
        let received = sample.pieces.into_iter().filter(|(source, _)| *source == Source::Update);
        for block in received.filter_map(|(_, rows)| part.block(copier, rows)) {
            // SAFETY: P1; these are rows of the slabs just copied, so they belong to this thread.
            unsafe { copier.copy_block(sides, &block, Stores::Cached) };
        }
    }

    /// Copies the pieces of each slab in the order in which they lie.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn along(&self, sample: &Sample, part: Part, lines: &mut Lines) {
        let mut pieces = sample.pieces.map(|(source, rows)| {
            let (sides, copier) = self.sides(sample.layer, source);
            let outer = copier.mapping().outer()?;
            let Block { dst, src, len, .. } = part.block(copier, rows).filter(|block| block.len > 0)?;
            Some((sides.dst.wrapping_add(dst), sides.src.wrapping_add(src), len, outer.src))
        });
        if let Some((dst, ..)) = pieces.iter().flatten().next() {
            // SAFETY: the caller's.
            unsafe { lines.go_on_at(*dst) };
        }
        for _ in 0..part.count {
            for (_, src, len, step) in pieces.iter_mut().flatten() {
                // SAFETY: P1; pieces lie one behind the other, and so do slabs (`Slabs::new`).
                unsafe { lines.append(*src, *len) };
                *src = src.wrapping_offset(*step);
            }
        }
    }
}

/// A slab is the slots of one outer index. A form goes through each sample slab by slab where they are so short
/// that runs around an update would be tiny, or where what is stored next should be what lies next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slabs {
    /// Slabs of one sample, contiguous and in the same order on both sides.
    count: usize,
    /// Bytes of one; not 0.
    bytes: usize,
    order: Order,
}

/// What is done with slabs.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// They are copied whole, and overwritten.
    Over,
    /// Their pieces are stored in the order in which they lie.
    Along,
}

/// Some slabs of a sample.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: usize,
    count: usize,
}

impl Slabs {
    pub(super) fn new(
        from_past: &Copier,
        from_update: &Copier,
        rows: usize,
        capacity: usize,
        stores: Stores,
    ) -> Option<Self> {
        let (Loop { count, dst, src }, bytes) = from_past.mapping().outer_runs(capacity)?;
        let update = from_update.mapping();
        let contiguous = dst == src && usize::try_from(dst) == Ok(bytes) && bytes > 0;
        let alike = update.outer().is_some_and(|outer| outer.count == count);
        let order = match stores {
            Stores::Streamed if (THIN..=STRIP).contains(&bytes) && update.outer_runs(rows).is_some() => {
                Order::Along
            }
            // An update of most of the slots would write most bytes twice.
            _ if bytes < WIDE && rows <= capacity.div_euclid(2) => Order::Over,
            _ => return None,
        };
        (contiguous && alike).then_some(Self { count, bytes, order })
    }

    /// Visits the parts that belong to a share.
    fn for_each(self, share: &mut Share<'_>, mut visit: impl FnMut(Part)) {
        let bytes = match self.order {
            Order::Over => TILE,
            Order::Along => STRIP,
        };
        share.groups(self.count, self.bytes, bytes, |first, count| visit(Part { first, count }));
    }
}

impl Part {
    /// What these slabs have of rows.
    fn block(self, copier: &Copier, rows: Rows) -> Option<Block> {
        copier.mapping().slabs(rows, self.first, self.count)
    }
}
