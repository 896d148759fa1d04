//! A call, and the blocks of rows into which it is divided.
//!
//! A row is a query of one head. Rows that share a head of keys are in the order `[queries, heads of the
//! group]`. The positions that any row of a block sees are processed in chunks, in the manner of flash
//! attention: each chunk gives the largest score, the sum of the weights and the weighted sum of the values
//! of each row, and these are merged with those of the chunks before it. So the memory of a block does not
//! grow with the context, unless the scores are an output or the softmax is in float64.
//!
//! The chunks begin at the first position that a row of the block sees, so the order of the sums does not depend on
//! slots. Slots that no row of the block sees are not read, unless the scores are an output.

use core::ops::Range;

use crate::aligned::padded;
use crate::error::Operand;
use crate::float::Float;
use crate::kernel::{CacheElement, Kernels, WideKernels, wide_kernels};
use crate::mask::Mask;
use crate::operands::{Inputs, Outputs, Source};
use crate::partial::Partial;
use crate::room::Room;
use crate::setup::Setup;
use crate::sizes::Sizes;

pub(crate) struct CallMemory<'a, T, C> {
    pub(crate) setup: &'a Setup,
    pub(crate) inputs: &'a Inputs<'a, T, C>,
    output: *mut T,
    present: Option<[*mut C; 2]>,
    scores: *mut T,
    pub(crate) kernels: Kernels<C>,
    pub(crate) wide_kernels: WideKernels,
}

// SAFETY: Threads share the inputs, and each item writes other elements of the outputs (A3), which the call borrows
// mutably.
unsafe impl<T: Float, C: CacheElement> Sync for CallMemory<'_, T, C> {}

/// The rows of one item.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) sample: usize,
    /// The heads of keys.
    pub(crate) heads: Range<usize>,
    pub(crate) rows: Range<usize>,
    pub(crate) tokens: i64,
    /// The position of the first token that is not padding on the left.
    pub(crate) start: i64,
    /// The position of the first query of the call.
    pub(crate) first: i64,
    /// The number of positions after which the slots repeat.
    pub(crate) turn: i64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The head of keys.
    pub(crate) head: usize,
    /// The index among the rows of this head.
    pub(crate) index: usize,
}

impl<'a, T: Float, C: CacheElement> CallMemory<'a, T, C> {
    /// Joins the operands of a call, which must fit the prepared shapes.
    pub(crate) fn new(
        setup: &'a Setup,
        inputs: &'a Inputs<'a, T, C>,
        outputs: &'a mut Outputs<'_, T, C>,
    ) -> Self {
        Self {
            setup,
            inputs,
            output: outputs.output.first,
            present: outputs.present.as_ref().map(|[key, value]| [key.first, value.first]),
            scores: outputs.scores.as_ref().map_or(core::ptr::null_mut(), |scores| scores.first),
            kernels: C::kernels(setup.isa),
            wide_kernels: wide_kernels(setup.isa),
        }
    }

    /// Writes the past rows and the new ones to the presents.
    pub(crate) fn copy_present(&self) {
        let sizes = &self.setup.sizes;
        let Sizes { batch, heads, keys, past, head_size, value_size, .. } = *sizes;
        let Some(presents) = self.present else { return };
        let [past_key, past_value] = self.inputs.past.unwrap_or([&[], &[]]);
        let of_key = (past_key, self.inputs.key, [Operand::PastKey, Operand::Key, Operand::PresentKey]);
        let of_value =
            (past_value, self.inputs.value, [Operand::PastValue, Operand::Value, Operand::PresentValue]);
        for ((present, (of_past, of_new, operands)), size) in
            presents.into_iter().zip([of_key, of_value]).zip([head_size, value_size])
        {
            if size == 0 || past + keys == 0 {
                continue; // an empty present may have any number of rows
            }
            let [old, from, to] = operands.map(|operand| self.setup.place(operand));
            for (sample, head) in (0..batch).flat_map(|sample| (0..heads).map(move |head| (sample, head))) {
                let copy = |row: &[C], at: usize| {
                    let to = present.wrapping_add(to.offset(sample, head, at));
                    // SAFETY: `check` compared the length of the present with its shape, and the row is one of
                    // this shape. The present is borrowed mutably, so the row does not overlap it.
                    unsafe { core::ptr::copy_nonoverlapping(row.as_ptr(), to, row.len()) };
                };
                for at in 0..past {
                    let first = old.offset(sample, head, at);
                    copy(&of_past[first..first + size], at);
                }
                for at in 0..keys {
                    let first = from.offset(sample, head, at);
                    copy(&of_new[first..first + size], past + at);
                }
            }
        }
    }

    /// Computes one item: the outputs of one block of rows.
    pub(crate) fn item(&self, item: usize, room: &mut Room) {
        let block = self.block(item);
        self.start(&block, room);
        room.total.clear();
        for number in 0..self.chunks(&room.positions) {
            if self.chunk(&block, number, room) {
                room.total.add(&room.partial);
            }
        }
        self.store(&block, room);
    }

    /// Stores the result of one chunk of an item, counted from the first one of the item, in `partial`.
    pub(crate) fn partial(&self, item: usize, chunk: usize, room: &mut Room, partial: &mut Partial) {
        let block = self.block(item);
        partial.weight.fill(0.0);
        self.start(&block, room);
        if chunk < self.chunks(&room.positions) && self.chunk(&block, chunk, room) {
            core::mem::swap(partial, &mut room.partial);
        }
    }

    /// Computes an item from the results of its chunks.
    pub(crate) fn join(&self, item: usize, partials: &[Partial], room: &mut Room) {
        room.total.clear();
        partials.iter().for_each(|partial| room.total.add(partial));
        self.store(&self.block(item), room);
    }

    /// Returns the largest number of chunks of an item.
    pub(crate) fn max_chunks(&self, room: &mut Room) -> usize {
        let chunks = (0..self.setup.items()).map(|item| {
            self.find_positions(&self.block(item), room);
            self.chunks(&room.positions)
        });
        chunks.max().unwrap_or(0)
    }

    /// Returns whether a call makes at least this many multiplications.
    pub(crate) fn has_multiplications(&self, least: usize, room: &mut Room) -> bool {
        let (mut count, size) = (0_usize, self.setup.sizes.head_size + self.setup.sizes.value_size);
        (0..self.setup.items()).any(|item| {
            let block = self.block(item);
            self.find_positions(&block, room);
            let rows = block.heads.len() * block.rows.len();
            let positions = (room.positions.end - room.positions.start) as usize;
            count = count.saturating_add(positions.saturating_mul(rows * size));
            count >= least
        })
    }

    pub(crate) fn start(&self, block: &Block, room: &mut Room) {
        self.scale_queries(block, room);
        self.find_positions(block, room);
    }

    /// Returns the number of chunks of the positions that any row of a block sees.
    pub(crate) fn chunks(&self, positions: &Range<i64>) -> usize {
        if self.setup.blocking.is_whole {
            return 1;
        }
        ((positions.end - positions.start) as usize).div_ceil(self.setup.blocking.chunk)
    }

    pub(crate) fn block(&self, item: usize) -> Block {
        let Setup { sizes, blocking, .. } = self.setup;
        let row_blocks = sizes.rows().div_ceil(blocking.rows);
        let head_blocks = sizes.heads.div_ceil(blocking.heads);
        let (row, rest) = (item % row_blocks * blocking.rows, item / row_blocks);
        let (head, sample) = (rest % head_blocks * blocking.heads, rest / head_blocks);
        let (tokens, first) = self.setup.tokens_of(self.inputs.valid, sample);
        Block {
            sample,
            heads: head..(head + blocking.heads).min(sizes.heads),
            rows: row..(row + blocking.rows).min(sizes.rows()),
            tokens,
            start: self.inputs.starts.map_or(0, |starts| starts[sample]),
            first,
            turn: if self.may_wrap() { self.setup.rule.cached(tokens).end } else { sizes.total() as i64 },
        }
    }

    /// Returns the positions that the rule of visibility shows to a row, by its index. Both ends increase with the
    /// index.
    pub(crate) fn positions_of(&self, block: &Block, index: usize) -> Range<i64> {
        let position = block.first + (index / self.setup.sizes.group()) as i64;
        self.setup.positions(block.tokens, position, block.start)
    }

    fn scale_queries(&self, block: &Block, room: &mut Room) {
        if self.setup.blocking.is_wide {
            return self.transpose_queries(block, room);
        }
        let (size, scale) = (self.setup.sizes.head_size, self.scale());
        for (row, scaled) in block.each().zip(room.queries.chunks_exact_mut(padded(size).max(1))) {
            let scaled = &mut scaled[..size];
            T::widen(self.query(block, row), scaled);
            scaled.iter_mut().for_each(|element| *element *= scale);
            self.scale_channels(Source::Keys, row, scaled);
        }
    }

    /// Multiplies a query with the scales of the elements of a key, or a result with those of a value, if these have
    /// some.
    pub(crate) fn scale_channels(&self, source: Source, row: Row, numbers: &mut [f32]) {
        if let Some(scales) = self.inputs.scales.and_then(|scales| scales.of_channels(source)) {
            let scales = &scales[row.head * numbers.len()..];
            numbers.iter_mut().zip(scales).for_each(|(number, scale)| *number *= scale);
        }
    }

    /// Returns the factor of the queries.
    pub(crate) fn scale(&self) -> f32 {
        let Setup { op, sizes, .. } = self.setup;
        op.scale.unwrap_or_else(|| 1.0 / (sizes.head_size as f32).sqrt())
    }

    /// Returns the query of a row.
    pub(crate) fn query(&self, block: &Block, row: Row) -> &[T] {
        let sizes = &self.setup.sizes;
        let (head, query) = self.query_of(row);
        let first = self.setup.places.query.offset(block.sample, head, query);
        &self.inputs.query[first..first + sizes.head_size]
    }

    /// Returns the indices of positions in the section that begins at `base`.
    pub(crate) fn indices(&self, base: i64, positions: &Range<i64>) -> Range<usize> {
        let index =
            |position: i64| usize::try_from(position - base).unwrap_or(0).min(self.setup.blocking.section);
        index(positions.start)..index(positions.end)
    }

    pub(crate) fn mask_of(&self, block: &Block, row: Row) -> Option<Mask<'_, T>> {
        let (head, query) = self.query_of(row);
        let layout = self.setup.mask.as_ref()?;
        Some(layout.row(self.inputs.mask?, [block.sample, head, query]))
    }

    fn query_of(&self, Row { head, index }: Row) -> (usize, usize) {
        let group = self.setup.sizes.group();
        (head * group + index % group, index / group)
    }

    /// Writes a row of `qk_matmul_output`. The slots after the last of these scores get `rest`.
    pub(crate) fn store_scores(&self, block: &Block, row: Row, scores: impl Iterator<Item = f32>, rest: f32) {
        let Sizes { query_heads, queries, .. } = self.setup.sizes;
        let total = self.setup.sizes.total();
        let (head, query) = self.query_of(row);
        let first = ((block.sample * query_heads + head) * queries + query) * total;
        for (at, score) in scores.chain(core::iter::repeat(rest)).take(total).enumerate() {
            // SAFETY: `check` compared the length of the output with its shape, and the element is one of this
            // shape. Each row is written by one item.
            unsafe { self.scores.wrapping_add(first + at).write(T::of_f32(score)) };
        }
    }

    /// Writes the rows of a block to `Y`.
    fn store(&self, block: &Block, room: &mut Room) {
        if let Some(sinks) = self.inputs.sinks {
            room.total.add_sinks(block.each().map(|row| sinks[self.query_of(row).0].to_f32()));
        }
        let size = self.setup.sizes.value_size;
        for (row, means) in block.each().zip(room.total.means()) {
            room.row.iter_mut().zip(means).for_each(|(element, mean)| *element = mean);
            self.scale_channels(Source::Values, row, &mut room.row);
            let (head, query) = self.query_of(row);
            let output = self.output.wrapping_add(self.setup.places.output.offset(block.sample, head, query));
            // SAFETY: `check` compared the length of the output with its shape, and the row is one of this shape.
            unsafe { output.write_bytes(0, size) };
            // SAFETY: As before. The row is initialised, and only this item uses it.
            let output = unsafe { core::slice::from_raw_parts_mut(output, size) };
            T::narrow(&room.row, output);
        }
    }
}

impl Block {
    /// Returns the rows of the block, in the order of the lists of a [`Room`].
    pub(crate) fn each(&self) -> impl Iterator<Item = Row> + use<> {
        let rows = self.rows.clone();
        self.heads.clone().flat_map(move |head| rows.clone().map(move |index| Row { head, index }))
    }
}
