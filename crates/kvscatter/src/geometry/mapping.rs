//! Merges the dimensions of a destination and a source into a few strided loops over contiguous runs.
//!
//! The crate documentation defines G1 and P1.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::blocks::{Block, Loop, Offsets, RowRange};
use crate::error::Error;
use crate::size::Width;

/// The dimensions of one write. Each entry describes the destination and the source.
#[derive(Debug)]
pub(crate) struct MappingDims {
    pub(crate) sample: Strides,
    /// The dimensions between the sample and the sequence, outermost first.
    pub(crate) outer: Vec<Loop>,
    /// The sequence. Its count is the largest number of rows in a block.
    pub(crate) rows: Loop,
    /// The dimensions after the sequence, outermost first.
    pub(crate) inner: Vec<Loop>,
}

/// The distances from one sample or row to the next, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strides {
    pub(crate) dst: isize,
    pub(crate) src: isize,
}

/// The rule that turns rows of a sample into blocks.
///
/// A mapping has no axis, rank or layout. It consists of batch × outer × rows × row.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    sample: Strides,
    row: Strides,
    /// The outer loops that do not fit into a block, outermost first. Each combination of their indices gives
    /// a block.
    split: Box<[Loop]>,
    loops: [Loop; 3],
    /// The index of the loop over the rows. `None` if there is at most one row, or if the rows are contiguous
    /// with the run on both sides.
    rows_at: Option<usize>,
    /// The index of the loop over all outer dimensions, if they merge into one loop.
    outer_at: Option<usize>,
    run: usize,
}

impl Mapping {
    /// Merges the dimensions.
    ///
    /// # Errors
    /// Returns [`Error::TooManyLoops`] if the sequence and the dimensions after it need more than three
    /// loops.
    pub(crate) fn new(dimensions: &MappingDims) -> Result<Self, Error> {
        let MappingDims { sample, outer, rows, inner } = dimensions;
        let (sample, row) = (*sample, Strides { dst: rows.dst_stride, src: rows.src_stride });
        if outer.iter().chain(inner).any(|each| each.count == 0) {
            // Nothing will move, so every layout is accepted.
            let loops = [Loop::ONCE; 3];
            let split = Box::default();
            return Ok(Self { sample, row, split, loops, rows_at: None, outer_at: None, run: 0 });
        }
        let mut inner = merge(inner);
        let run = match inner.last() {
            Some(&Loop { count, dst_stride: 1, src_stride: 1 }) => {
                inner.pop();
                count
            }
            _ => 1,
        };
        let row_stride = isize::try_from(run).ok();
        let mut loops = inner;
        let inner_count = loops.len();
        let contiguous =
            inner_count == 0 && Some(rows.dst_stride) == row_stride && Some(rows.src_stride) == row_stride;
        // The number of rows must not decide whether a layout is accepted. One row needs no loop over the
        // rows, but a prefill with the same layout does, and so does the functional form.
        let needed = inner_count.saturating_add(usize::from(!contiguous));
        if needed > 3 {
            return Err(Error::TooManyLoops { loops: needed });
        }
        let rows_in_run = contiguous || rows.count <= 1;
        if !rows_in_run {
            loops.insert(0, *rows);
        }
        let mut split = merge(outer);
        let outer_at = if split.len() == 1 { 2_usize.checked_sub(loops.len()) } else { None };
        while loops.len() < 3 {
            loops.insert(0, split.pop().unwrap_or(Loop::ONCE));
        }
        let loops: [Loop; 3] =
            loops.try_into().map_err(|all: Vec<Loop>| Error::TooManyLoops { loops: all.len() })?;
        let rows_at = if rows_in_run { None } else { 2_usize.checked_sub(inner_count) };
        Ok(Self { sample, row, split: split.into(), loops, rows_at, outer_at, run })
    }

    /// Returns the mapping of the same elements counted in bytes.
    pub(crate) fn in_bytes(&self, width: Width) -> Self {
        let strides = |each: Strides| Strides { dst: width.step(each.dst), src: width.step(each.src) };
        let scale = |each: &Loop| Loop {
            count: each.count,
            dst_stride: width.step(each.dst_stride),
            src_stride: width.step(each.src_stride),
        };
        Self {
            sample: strides(self.sample),
            row: strides(self.row),
            split: self.split.iter().map(scale).collect(),
            loops: self.loops.each_ref().map(scale),
            run: width.bytes(self.run),
            ..*self
        }
    }

    /// Returns `true` if every run begins and ends at an even element, if sample 0 begins at one.
    pub(crate) fn is_even(&self) -> bool {
        let loops = self.loops.iter().chain(&self.split);
        let strides = loops.flat_map(|each| [each.dst_stride, each.src_stride]);
        let strides = strides.chain([self.sample.dst, self.sample.src, self.row.dst, self.row.src]);
        strides.chain([self.run.cast_signed()]).all(|stride| stride % 2 == 0)
    }

    /// Returns the distances from one sample to the next.
    pub(crate) fn sample_strides(&self) -> Strides {
        self.sample
    }

    /// Returns the distances from one row to the next.
    pub(crate) fn row_strides(&self) -> Strides {
        self.row
    }

    /// Returns every loop except those over samples and rows, outermost first, and the length of the run
    /// inside them.
    pub(crate) fn other_loops(&self) -> (Vec<Loop>, usize) {
        let loops = self.loops.iter().enumerate().filter(|(index, _)| Some(*index) != self.rows_at);
        let loops = self.split.iter().chain(loops.map(|(_, each)| each));
        (loops.filter(|each| each.count != 1).copied().collect(), self.run)
    }

    /// Returns the length of a run when this many rows move.
    pub(crate) fn run_of(&self, rows: usize) -> usize {
        // G1: a run of whole rows is a part of the tensor.
        if self.rows_at.is_some() { self.run } else { self.run.wrapping_mul(rows) }
    }

    /// Returns the loop over all outer dimensions, if they merge into one loop.
    pub(crate) fn outer(&self) -> Option<Loop> {
        self.outer_at.and_then(|index| self.loops.get(index).copied())
    }

    /// Returns the loop over all outer dimensions and the length of its runs, if this many rows form one
    /// contiguous run for each outer index.
    pub(crate) fn outer_runs(&self, rows: usize) -> Option<(Loop, usize)> {
        self.single_loop(rows).filter(|_| self.outer_at == Some(2))
    }

    /// Returns the block that moves these rows for `count` outer indices, beginning with index `first`.
    /// Returns `None` unless [`outer`](Self::outer) is a loop.
    pub(crate) fn slabs(&self, rows: RowRange, first: usize, count: usize) -> Option<Block> {
        let mut block = self.block(Offsets { dst: 0, src: 0 }, rows);
        let outer = self.outer_at.and_then(|index| block.loops.get_mut(index))?;
        let all = *outer;
        outer.count = count;
        block.advance(all, first);
        Some(block)
    }

    /// Visits the blocks that move these rows. Sample 0 begins at the offsets `first`.
    #[inline]
    pub(crate) fn for_each(&self, first: Offsets, rows: RowRange, mut visit: impl FnMut(&Block)) {
        if self.is_empty(rows) {
            return;
        }
        let block = self.block(first, rows);
        if self.split.is_empty() {
            visit(&block);
        } else {
            for index in 0..self.splits() {
                visit(&self.at_split(block, index));
            }
        }
    }

    /// Returns an iterator over the blocks that move these rows.
    pub(crate) fn blocks(&self, first: Offsets, rows: RowRange) -> impl Iterator<Item = Block> + use<'_> {
        let block = self.block(first, rows);
        (0..self.block_count(rows)).map(move |index| self.at_split(block, index))
    }

    pub(crate) fn block_count(&self, rows: RowRange) -> usize {
        if self.is_empty(rows) { 0 } else { self.splits() }
    }

    /// Returns the offsets of the first of these rows, if sample 0 begins at `first`.
    #[inline(always)]
    pub(crate) fn offsets(&self, first: Offsets, rows: RowRange) -> Offsets {
        // P1: every partial sum of indices in range times strides lies inside its buffer, which `View`
        // proves. The rows of the caller are in range, so no step here wraps.
        let offset = |base: usize, sample: isize, row: isize, at_row: usize| {
            base.wrapping_add_signed(sample.wrapping_mul(rows.sample.cast_signed()))
                .wrapping_add_signed(row.wrapping_mul(at_row.cast_signed()))
        };
        Offsets {
            dst: offset(first.dst, self.sample.dst, self.row.dst, rows.dst_row),
            src: offset(first.src, self.sample.src, self.row.src, rows.src_row),
        }
    }

    /// Returns the loop and the length of its runs, if a single loop moves this many rows of a sample.
    pub(crate) fn single_loop(&self, rows: usize) -> Option<(Loop, usize)> {
        let rows = RowRange { sample: 0, dst_row: 0, src_row: 0, count: rows };
        let Block { len, loops: [outer, middle, inner], .. } =
            self.block(Offsets { dst: 0, src: 0 }, rows).with_innermost_loop();
        let single = !self.is_empty(rows) && self.split.is_empty() && outer.count == 1 && middle.count == 1;
        single.then_some((inner, len))
    }

    fn block(&self, first: Offsets, rows: RowRange) -> Block {
        let Offsets { dst, src } = self.offsets(first, rows);
        let mut block =
            Block { dst_offset: dst, src_offset: src, len: self.run_of(rows.count), loops: self.loops };
        if let Some(over_rows) = self.rows_at.and_then(|index| block.loops.get_mut(index)) {
            over_rows.count = rows.count;
        }
        block
    }

    fn is_empty(&self, rows: RowRange) -> bool {
        rows.count == 0 || self.run == 0
    }

    fn splits(&self) -> usize {
        // G1: this is a product of dimensions of one tensor.
        self.split.iter().fold(1, |n: usize, each| n.wrapping_mul(each.count))
    }

    /// Returns the block, shifted to one combination of the indices of the split loops.
    ///
    /// `index` numbers the combinations, and the index of the last loop varies fastest.
    fn at_split(&self, mut block: Block, mut index: usize) -> Block {
        for each in self.split.iter().rev() {
            block.advance(*each, index.checked_rem(each.count).unwrap_or(0));
            index = index.checked_div(each.count).unwrap_or(0);
        }
        block
    }
}

/// Drops dimensions of size 1, and joins neighbours whose strides fit each other on both sides.
fn merge(dimensions: &[Loop]) -> Vec<Loop> {
    let mut merged: Vec<Loop> = Vec::with_capacity(dimensions.len());
    for &Loop { count, dst_stride: dst, src_stride: src } in dimensions.iter().filter(|each| each.count != 1)
    {
        let extents =
            isize::try_from(count).ok().and_then(|n| Some((dst.checked_mul(n)?, src.checked_mul(n)?)));
        match merged.last_mut() {
            Some(outer) if extents == Some((outer.dst_stride, outer.src_stride)) => {
                // G1: this is a product of dimensions of one tensor.
                *outer = Loop { count: outer.count.wrapping_mul(count), dst_stride: dst, src_stride: src };
            }
            _ => merged.push(Loop { count, dst_stride: dst, src_stride: src }),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::{Loop, Mapping, MappingDims, Offsets, RowRange, Strides, merge};
    use crate::error::Error;
    use alloc::vec::Vec;

    fn strided(count: usize, dst: isize, src: isize) -> Loop {
        Loop { count, dst_stride: dst, src_stride: src }
    }

    fn mapping(sample: Strides, outer: &[Loop], rows: Loop, inner: &[Loop]) -> Result<Mapping, Error> {
        Mapping::new(&MappingDims { sample, outer: outer.to_vec(), rows, inner: inner.to_vec() })
    }

    const ROWS: RowRange = RowRange { sample: 1, dst_row: 3, src_row: 0, count: 2 };

    #[test]
    fn even_steps_merge_and_single_elements_vanish() {
        let uneven = [strided(3, 20, 10), strided(1, 7, 9), strided(4, 5, 2)];
        assert_eq!(merge(&uneven), [strided(3, 20, 10), strided(4, 5, 2)]);
        assert_eq!(merge(&[strided(3, 20, 40), strided(4, 5, 10)]), [strided(12, 5, 10)]);
        assert_eq!(merge(&[strided(3, 0, 0), strided(4, 0, 0)]), [strided(12, 0, 0)]);
    }

    #[test]
    fn dense_heads_make_one_block_per_sample() {
        // The cache is [batch, 8 heads, 16 slots, 4] and the update [batch, 8, 2, 4].
        let sample = Strides { dst: 8 * 64, src: 8 * 8 };
        let mapping = mapping(sample, &[strided(8, 64, 8)], strided(2, 4, 4), &[strided(4, 1, 1)]).unwrap();
        let blocks: Vec<_> = mapping.blocks(Offsets { dst: 0, src: 0 }, ROWS).collect();
        assert_eq!(blocks.len(), 1);
        assert_eq!((blocks[0].dst_offset, blocks[0].src_offset, blocks[0].len), (8 * 64 + 12, 64, 8));
        assert_eq!(blocks[0].loops, [Loop::ONCE, Loop::ONCE, strided(8, 64, 8)]);
        assert_eq!(blocks[0].elements(), 64);
        // The faster kernels take such a write, and none of no rows.
        assert_eq!(mapping.single_loop(2), Some((strided(8, 64, 8), 8)));
        assert_eq!(mapping.outer_runs(2), mapping.single_loop(2));
        assert_eq!(mapping.single_loop(0), None);
    }

    #[test]
    fn a_transposed_update_keeps_one_block() {
        // The update is stored as [batch, 2 rows, 8 heads, 4].
        let sample = Strides { dst: 8 * 64, src: 64 };
        let mapping = mapping(sample, &[strided(8, 64, 4)], strided(2, 4, 32), &[strided(4, 1, 1)]).unwrap();
        let blocks: Vec<_> = mapping.blocks(Offsets { dst: 0, src: 0 }, ROWS).collect();
        assert_eq!(blocks[0].loops, [Loop::ONCE, strided(8, 64, 4), strided(2, 4, 32)]);
        assert_eq!(blocks.len(), 1);
        assert_eq!(mapping.single_loop(2), None);
        assert_eq!(mapping.single_loop(1), Some((strided(8, 64, 4), 4)));
        assert_eq!(mapping.outer_runs(1), None);
    }

    #[test]
    fn outer_loops_that_do_not_fit_are_split() {
        let outer = [strided(2, 1000, 1), strided(3, 100, 7)];
        let mapping =
            mapping(Strides { dst: 0, src: 0 }, &outer, strided(2, 10, 30), &[strided(4, 2, 3)]).unwrap();
        let blocks: Vec<_> = mapping
            .blocks(Offsets { dst: 5, src: 6 }, RowRange { sample: 0, dst_row: 0, src_row: 0, count: 2 })
            .collect();
        assert_eq!(
            blocks.iter().map(|block| (block.dst_offset, block.src_offset)).collect::<Vec<_>>(),
            [(5, 6), (1005, 7)]
        );
        assert_eq!(blocks[0].loops, [strided(3, 100, 7), strided(2, 10, 30), strided(4, 2, 3)]);
        assert_eq!(mapping.single_loop(2), None);
    }

    #[test]
    fn more_than_three_loops_after_the_heads_are_refused() {
        let inner = [strided(2, 100, 1), strided(2, 10, 7), strided(2, 2, 50)];
        for rows in [1, 2] {
            let refused = mapping(Strides { dst: 0, src: 0 }, &[], strided(rows, 1000, 500), &inner);
            assert_eq!(refused.unwrap_err(), Error::TooManyLoops { loops: 4 });
        }
    }
}
