//! One call's positions, all checked before the first byte moves, as blocks to be copied.

use crate::argument::Words;
use crate::call::{Call, Checked, Positions};
use crate::cpu::{Executor, Host, SHARED};
use crate::geometry::{Geometry, Samples};
use crate::mapping::{Block, Rows};
use crate::{Error, Starts, size};

/// A write whose every position is known to be right: a [`Geometry`] and this call's starts and lengths.
///
/// It allocates nothing and borrows the indices it was made from, so they cannot change under it. Make it
/// once per step and use it for the key cache, the value cache and every layer that shares the positions.
///
/// * **P1** every destination bit of every block lies inside the cache, every source bit inside the update;
/// * **P2** the blocks of one plan are disjoint in the destination, so they may run in any order.
#[derive(Clone, Copy, Debug)]
pub struct WritePlan<'a> {
    positions: Positions<'a>,
    checked: Checked,
    host: Host<'a>,
}

/// A run of slots of one sample that receives consecutive rows of its update.
///
/// A sample has one, or two where a ring wraps: the second then begins at slot 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Segment {
    /// The sample.
    pub sample: usize,
    /// The first slot written.
    pub slot: usize,
    /// The row of the sample's update that goes there.
    pub row: usize,
    /// How many rows.
    pub rows: usize,
}

impl<'a> WritePlan<'a> {
    /// Checks every index of a call; see [`Positions::check`].
    #[inline(always)]
    pub(crate) fn new(geometry: &'a Geometry, call: Call<'a>) -> Result<Self, Error> {
        let positions = Positions::new(geometry, call);
        let checked = positions.check()?;
        Ok(Self { positions, checked, host: Host(None) })
    }

    /// The same plan, whose writes may use the threads of `executor` where they are large enough to gain by it.
    /// Without one, everything runs on the calling thread, as cloned values always do. Where rows of 4-bit elements
    /// begin or end in the middle of a byte, threads take whole samples of a dense cache, and a view stays on
    /// one.
    #[must_use]
    pub fn with_executor<'b>(self, executor: &'b dyn Executor) -> WritePlan<'b>
    where
        'a: 'b,
    {
        WritePlan { host: Host(Some(executor)), ..self }
    }

    /// The executor, if there is one and a write of this many bytes gains by it.
    pub(crate) fn executor(&self, bytes: usize) -> Option<&'a dyn Executor> {
        self.host.0.filter(|_| bytes >= SHARED)
    }

    /// The shapes this plan writes.
    #[must_use]
    pub fn geometry(&self) -> &'a Geometry {
        self.positions.geometry()
    }

    /// What this plan's specification calls its tensors.
    pub(crate) fn words(&self) -> &'static Words {
        self.geometry().words
    }

    pub(crate) fn positions(&self) -> &Positions<'a> {
        &self.positions
    }

    /// Samples of the update.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.positions.batch()
    }

    /// The layer written; 0 where the operator knows none.
    #[must_use]
    pub fn layer(&self) -> usize {
        self.checked.layer
    }

    /// Samples that [`OutOfRange::SkipSample`](crate::OutOfRange::SkipSample) leaves as they are.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.checked.skipped
    }

    /// The position of a sample as this call gives it: `write_indices[sample]`, or Ascend's `tokenOffset`.
    #[must_use]
    pub fn position(&self, sample: usize) -> Option<i64> {
        self.positions.given(sample)
    }

    /// Whether [`OutOfRange::SkipSample`](crate::OutOfRange::SkipSample) leaves this sample as it is.
    #[must_use]
    pub fn skips(&self, sample: usize) -> bool {
        let place = |(span, length)| self.positions.slot(sample, span, length);
        sample < self.batch() && self.positions.rows_of(sample).and_then(place).is_err()
    }

    /// Elements the write moves: a write in place reads and writes these and no others.
    #[must_use]
    pub fn elements(&self) -> usize {
        // G1: a part of the update.
        self.checked.rows.wrapping_mul(self.geometry().row_elements)
    }

    /// Bytes the write moves, rounded up where 4-bit elements end on half a byte; `None` for strings.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        size::bytes(self.elements(), self.geometry().element().bits()?)
    }

    /// Visits every [`Block`]. This is how backends execute a plan.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(&Block)) {
        let (dst, src) = self.bases();
        self.for_each_rows(|rows| self.geometry().write.for_each(dst, src, rows, &mut visit));
    }

    /// The blocks one by one, for pictures and tests; [`for_each`](Self::for_each) is faster.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<'a> {
        let (geometry, (dst, src)) = (self.geometry(), self.bases());
        self.targets().flat_map(Target::rows).flat_map(move |rows| geometry.write.blocks(dst, src, rows))
    }

    /// Which slots of which sample are written: what a block is before layouts enter, for pictures.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        self.targets().flat_map(move |target| {
            let segment = move |Rows { sample, dst, src, count }: Rows| Segment {
                sample,
                slot: dst,
                row: src.wrapping_sub(target.row),
                rows: count,
            };
            target.rows().map(segment)
        })
    }

    /// The rows that move from the update into the cache.
    #[inline(always)]
    pub(crate) fn for_each_rows(&self, mut visit: impl FnMut(Rows)) {
        match self.positions.starts() {
            Starts::I64(values) if self.checked.one_start_each => {
                self.starting(values.iter().copied()).for_each(|target| target.for_each_rows(&mut visit));
            }
            Starts::I32(values) if self.checked.one_start_each => {
                let values = values.iter().map(|&value| value.into());
                self.starting(values).for_each(|target| target.for_each_rows(&mut visit));
            }
            _ => self.targets().for_each(|target| target.for_each_rows(&mut visit)),
        }
    }

    /// Where samples go whose starts say it all.
    #[inline(always)]
    fn starting(&self, values: impl Iterator<Item = i64>) -> impl Iterator<Item = Target> {
        let length = self.positions.most_rows();
        let rule = self.positions.slot_rule(length);
        let capacity = self.geometry().capacity();
        values.enumerate().filter_map(move |(sample, value)| {
            Some(Target { sample, slot: rule.slot(value)?, row: 0, length, capacity })
        })
    }

    /// The functional form: every sample of every layer of the cache.
    pub(crate) fn for_each_sample(&self, mut visit: impl FnMut(Sample)) {
        let Geometry { layers, present, .. } = self.geometry();
        if present.buffer.len == 0 {
            return;
        }
        let capacity = self.geometry().capacity();
        for layer in 0..layers.size {
            let written = if layer == self.checked.layer { self.walked() } else { 0 };
            let mut packed_row = 0;
            for index in 0..self.geometry().cache_batch() {
                let target = if index < written { self.target(index, &mut packed_row) } else { None };
                visit(Sample { layer, index, pieces: Target::pieces(target, index, capacity) });
            }
        }
    }

    /// The functional form block by block.
    pub(crate) fn for_each_present(&self, mut visit: impl FnMut(Source, &Block)) {
        let Geometry { present, .. } = self.geometry();
        self.for_each_sample(|sample| {
            for (source, rows) in sample.pieces {
                let mapping = present.mapping(source);
                let (dst, src) = self.present_bases(sample.layer, source);
                mapping.for_each(dst, src, rows, |block| visit(source, block));
            }
        });
    }

    /// Where sample 0 of a layer begins, in the present and in what it comes from.
    pub(crate) fn present_bases(&self, layer: usize, source: Source) -> (usize, usize) {
        let Geometry { cache, update, layers, present, .. } = self.geometry();
        let src = match source {
            Source::Past => layer_base(cache.offset, layers.stride, layer),
            Source::Update => update.offset,
        };
        (layer_base(0, present.layer_stride, layer), src)
    }

    /// Where sample 0 of the written layer begins, in the cache and in the update.
    pub(crate) fn bases(&self) -> (usize, usize) {
        let Geometry { cache, update, layers, .. } = self.geometry();
        (layer_base(cache.offset, layers.stride, self.checked.layer), update.offset)
    }

    fn targets(&self) -> impl Iterator<Item = Target> + use<'a> {
        let plan = *self;
        (0..plan.walked()).scan(0, move |packed_row, sample| Some(plan.target(sample, packed_row))).flatten()
    }

    /// Samples to go through; none if there is nothing to move.
    fn walked(&self) -> usize {
        if self.elements() == 0 { 0 } else { self.batch() }
    }

    /// Where a sample goes; `None` if it is skipped.
    fn target(&self, sample: usize, packed_row: &mut usize) -> Option<Target> {
        let (span, length) = self.positions.rows_of(sample).ok()?; // `new` has seen that this is `Ok`
        let row = *packed_row;
        if let Samples::Packed { .. } = self.geometry().samples {
            *packed_row = row.wrapping_add(span); // at most the tokens of the update
        }
        let slot = self.positions.slot(sample, span, length).ok()?; // `Err` is a skipped sample
        Some(Target { sample, slot, row, length, capacity: self.geometry().capacity() })
    }
}

/// Where a layer begins. P1: the layer exists, and `View` proves every partial sum.
fn layer_base(offset: usize, stride: isize, layer: usize) -> usize {
    offset.wrapping_add_signed(stride.wrapping_mul(layer.cast_signed()))
}

/// Where one sample goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    sample: usize,
    slot: usize,
    /// Its first row in the update.
    row: usize,
    length: usize,
    capacity: usize,
}

impl Target {
    /// One run of slots, and a second from slot 0 where the ring wraps.
    #[inline(always)]
    fn for_each_rows(self, visit: &mut impl FnMut(Rows)) {
        let Self { sample, slot, row, length, capacity } = self;
        // `slot <= capacity` and `first <= length`: nothing here wraps.
        let first = length.min(capacity.wrapping_sub(slot));
        if first > 0 {
            visit(Rows { sample, dst: slot, src: row, count: first });
        }
        let rest = length.wrapping_sub(first);
        if rest > 0 {
            visit(Rows { sample, dst: 0, src: row.wrapping_add(first), count: rest });
        }
    }

    /// The same one by one.
    pub(crate) fn rows(self) -> impl Iterator<Item = Rows> {
        let mut found = [None; 2];
        let mut places = found.iter_mut();
        self.for_each_rows(&mut |rows| places.by_ref().take(1).for_each(|place| *place = Some(rows)));
        found.into_iter().flatten()
    }

    /// All slots of a sample, first to last, and where they come from.
    fn pieces(target: Option<Self>, sample: usize, capacity: usize) -> [(Source, Rows); 3] {
        let past = |from: usize, to: usize| {
            (Source::Past, Rows { sample, dst: from, src: from, count: to.saturating_sub(from) })
        };
        let Some(Self { slot, row, length, .. }) = target else {
            return [past(0, capacity), past(capacity, capacity), past(capacity, capacity)];
        };
        let update =
            |dst: usize, src: usize, count: usize| (Source::Update, Rows { sample, dst, src, count });
        // No sum wraps: slot and length are at most the capacity, which fits `isize`; the rows are the update's.
        let end = slot.wrapping_add(length);
        match end.checked_sub(capacity) {
            Some(wrapped) => {
                let first = length.wrapping_sub(wrapped);
                let rest = update(0, row.wrapping_add(first), wrapped);
                [rest, past(wrapped, slot), update(slot, row, first)]
            }
            None => [past(0, slot), update(slot, row, length), past(end, capacity)],
        }
    }
}

/// A sample in functional form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) layer: usize,
    pub(crate) index: usize,
    /// Its slots, first to last; none may be there.
    pub(crate) pieces: [(Source, Rows); 3],
}

/// Where slots of a present come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Past,
    Update,
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Source, WritePlan};
    use crate::spec::{ascend::KvCacheOperation, onnx::TensorScatter, tensorrt::KvCacheUpdate};
    use crate::{ElementType, Mode, OutOfRange};

    /// Elements that the functional form takes from the past and from the update.
    fn moved(plan: &WritePlan<'_>) -> [usize; 2] {
        [Source::Past, Source::Update].map(|wanted| {
            let mut moved = Vec::new();
            plan.for_each_present(|source, block| {
                moved.extend((source == wanted).then_some(block.elements()));
            });
            moved.iter().sum()
        })
    }

    /// One pass over memory: every element of the present is written once.
    #[test]
    fn the_functional_form_partitions_the_present() {
        let int8 = ElementType::Int8;
        let (cache, update) = ([3, 2, 5, 2], [3, 2, 3, 2]); // 20 elements a sample
        let ring = TensorScatter::new().mode(Mode::Circular).prepare(int8, &cache, &update).unwrap();
        for start in -6..=6 {
            assert_eq!(moved(&ring.plan(&[start, 0, 4]).unwrap()), [24, 36], "{start}");
        }
        assert_eq!(moved(&ring.plan_lengths(&[4, 4, 4], &[0, 1, 2]).unwrap()), [60 - 12, 12]);

        let skipping = TensorScatter::new().out_of_range(OutOfRange::SkipSample);
        let skipping = skipping.prepare(int8, &cache, &update).unwrap();
        assert_eq!(moved(&skipping.plan(&[0, 3, 2]).unwrap()), [60 - 24, 24]);
        let empty = TensorScatter::new().prepare(int8, &cache, &[3, 2, 0, 2]).unwrap();
        assert_eq!(moved(&empty.plan(&[0, 5, 2]).unwrap()), [60, 0]);

        let half = ElementType::Float16;
        let smaller = KvCacheUpdate::new().prepare(half, &cache, &[1, 2, 3, 2]).unwrap();
        assert_eq!(moved(&smaller.plan(&[2]).unwrap()), [60 - 12, 12]);
        let packed = KvCacheUpdate::new().prepare_packed(half, &cache, &[4, 2, 2]).unwrap();
        assert_eq!(moved(&packed.plan(&[2, 0], &[0, 3, 4]).unwrap()), [60 - 16, 16]);
        let layers = KvCacheOperation::new().prepare(half, &[4, 2], &[3, 2, 5, 2]).unwrap();
        assert_eq!(moved(&layers.plan(&[1], &[5, 3], &[1, 3]).unwrap()), [60 - 8, 8]);
    }
}
