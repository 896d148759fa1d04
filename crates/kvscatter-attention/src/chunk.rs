//! One chunk of the positions of a block. Those of blocks with many rows are in `wide`.
//!
//! A slot that a row does not see has the weight 0 in this row, and 0 times NaN is NaN. So a row is summed again if one
//! of its sums is not finite, without the values of weight 0.

use core::ops::Range;

use crate::aligned::padded;
use crate::block::{Block, CallMemory, Row};
use crate::error::Operand;
use crate::float::Float;
use crate::kernel::{CacheElement, LANES, Rows, Scaled, Stream, Streams};
use crate::operands::Source;
use crate::operator::{Scores, Softmax};
use crate::partial::Partial;
use crate::places::Place;
use crate::room::Room;
use crate::setup::Blocking;
use crate::sizes::{Blocks, Sizes};
use crate::slots::Slots;
use crate::streams::{Start, Sweep};

impl<T: Float, C: CacheElement> CallMemory<'_, T, C> {
    /// Computes the result of one chunk in `room.partial`. Returns `false` if no row sees any of its positions.
    pub(crate) fn chunk(&self, block: &Block, number: usize, room: &mut Room) -> bool {
        let Blocking { chunk, is_wide, .. } = self.setup.blocking;
        let score_stride = self.setup.blocking.score_stride();
        // The position of the first index of the lists of a room. An output of scores begins with slot 0.
        let base =
            if self.setup.op.scores.is_some() { 0 } else { room.positions.start + (number * chunk) as i64 };
        let end = base.saturating_add(chunk as i64).min(room.positions.end);
        let positions = base.max(room.positions.start)..end;
        if is_wide {
            return self.wide_chunk(block, &positions, room);
        }
        let head_size = self.setup.sizes.head_size;
        let query_size = padded(head_size);
        let rows = block.rows.len();
        self.find_runs(block, base, &positions, room);
        if room.runs.is_empty() && self.setup.op.scores.is_none() {
            return false;
        }
        let total = self.setup.sizes.total();
        let all = self.segments(total as i64, 0, &(0..total as i64));
        self.find_offsets(block, room);
        let (read, used) = if self.setup.op.returns_hidden() {
            (all.as_slice(), total)
        } else {
            (room.runs.as_slice(), (positions.end - base) as usize)
        };
        let used = used.next_multiple_of(LANES);
        for sweep in self.setup.blocking.sweeps(read) {
            for (head, keys) in self.streams(block, &sweep, Source::Keys, &room.offsets).enumerate() {
                let of_head = head * rows..(head + 1) * rows;
                let queries = rows_of(&mut room.queries, query_size, of_head.clone());
                let scores = rows_of(&mut room.scores, score_stride, of_head);
                // SAFETY: `Setup` has an instruction set of the machine (A4). The assertion in `streams` proves that
                // the slots are in K or the past (A2). The queries are padded with zeros. The runs end inside the
                // chunk, so the scores have an element for each key.
                unsafe { (self.kernels.products)(queries, keys, head_size, scores) };
            }
        }
        self.scale_slots(Scaled::Scores, block, read, &mut room.scores);
        for (at, row) in block.each().enumerate() {
            let scores = &mut room.scores[at * score_stride..][..used];
            let bias = room.has_bias.then(|| &room.bias[at * chunk..][..used]);
            let visible = self.indices(base, &room.seen[at % rows]);
            self.finish_scores(block, visible, row, scores, bias);
            let (most, weight) = if self.setup.op.softmax == Softmax::Float64 {
                weights_in_f64(scores)
            } else {
                // SAFETY: `Setup` has an instruction set of the machine (A4). `scores` has `used` numbers, and `used`
                // is a multiple of `LANES`.
                unsafe { (self.kernels.weights)(scores.as_mut_ptr(), used) }
            };
            (room.partial.most[at], room.partial.weight[at]) = (most, weight);
            if self.setup.op.scores == Some(Scores::Weights) {
                let weights = scores.iter().map(|score| if weight == 0.0 { 0.0 } else { score / weight });
                self.store_scores(block, row, weights, 0.0);
            }
        }
        self.scale_slots(Scaled::Weights, block, &room.runs, &mut room.scores);
        self.sum_values(block, room);
        true
    }

    /// Multiplies the scores or the weights of each row with the scales of the slots of runs, if these have some.
    fn scale_slots(&self, of: Scaled, block: &Block, runs: &[Slots], numbers: &mut [f32]) {
        let source = if of == Scaled::Scores { Source::Keys } else { Source::Values };
        let rows = numbers.chunks_exact_mut(self.setup.blocking.score_stride());
        for (row, numbers) in block.each().zip(rows) {
            for run in runs.iter().flat_map(|run| self.parts(block.sample, run)) {
                let Some(scales) = self.scales_of(source, block.sample, row.head, &run) else { return };
                let numbers = &mut numbers[run.index..run.end()];
                if of == Scaled::Weights && self.setup.op.softmax == Softmax::Float64 {
                    // These weights may be below the smallest normal number, which the kernel takes for 0.
                    let seen = numbers.iter_mut().zip(scales).filter(|(weight, _)| **weight != 0.0);
                    seen.for_each(|(weight, scale)| *weight *= scale);
                    continue;
                }
                // SAFETY: `Setup` has an instruction set of the machine (A4). Both slices are as long as the run.
                unsafe { (self.kernels.scale)(of, numbers.as_mut_ptr(), scales) };
            }
        }
    }

    /// Sums the weighted values of a chunk in `room.partial`.
    fn sum_values(&self, block: &Block, room: &mut Room) {
        let rows = block.rows.len();
        let Room { runs, offsets, scores, group, partial, .. } = room;
        partial.sums.fill(0.0);
        for sweep in self.setup.blocking.sweeps(runs) {
            for (head, values) in self.streams(block, &sweep, Source::Values, offsets).enumerate() {
                self.add_values(values, head * rows..(head + 1) * rows, [scores, group, &mut partial.sums]);
            }
        }
        if add_groups(&mut partial.sums, group) {
            return;
        }
        // The rows of a block read the same values. A value that a row does not see has the weight 0 there, and 0 times
        // NaN or infinity is NaN. So a row whose sums are not numbers is summed alone, without such values.
        let row_size = padded(self.setup.sizes.value_size);
        for row in 0..block.heads.len() * rows {
            // If the sum of the weights is NaN, the row is NaN.
            let Partial { weight, sums, .. } = &room.partial;
            if weight[row] > 0.0 && !is_finite(&sums[row * row_size..][..row_size]) {
                self.sum_values_with_weight(block, row, room);
            }
        }
    }

    /// Sums the values of one row of a chunk that have a weight other than 0, in the order of [`Self::sum_values`].
    #[cold]
    fn sum_values_with_weight(&self, block: &Block, row: usize, room: &mut Room) {
        let row_size = padded(self.setup.sizes.value_size);
        let of_row = row * row_size..(row + 1) * row_size;
        let Room { runs, offsets, scores, group, partial, .. } = room;
        partial.sums[of_row.clone()].fill(0.0);
        for sweep in self.setup.blocking.sweeps(runs) {
            let Some(values) =
                self.streams(block, &sweep, Source::Values, offsets).nth(row / block.rows.len())
            else {
                continue;
            };
            let mut step = 0;
            while step < values.count {
                let weights = &scores[row * self.setup.blocking.score_stride()..];
                let values = values.steps_from(step, |index| weights[index] != 0.0);
                self.add_values(values, row..row + 1, [scores, group, &mut partial.sums]);
                step += values.count;
            }
        }
        add_groups(&mut partial.sums[of_row.clone()], &mut group[of_row]);
    }

    /// Adds weighted values of one head to rows of this head, whose lists begin with those of the first row of a block.
    fn add_values(&self, values: Streams<C>, rows: Range<usize>, [weights, group, sums]: [&mut [f32]; 3]) {
        let size = self.setup.sizes.value_size;
        let weights = rows_of(weights, self.setup.blocking.score_stride(), rows.clone());
        let group = rows_of(group, padded(size), rows.clone());
        let sums = rows_of(sums, padded(size), rows);
        // SAFETY: The instruction set (A4) and the slots (A2) are as for the products. The weights have an element for
        // each slot. The rows of the group and of the sums are padded to a multiple of `LANES`.
        unsafe { (self.kernels.weighted_sums)(weights, values, size, group, sums) };
    }

    /// Stores where the keys and values of the runs lie, if they are in blocks, as offsets from those of the first
    /// head.
    fn find_offsets(&self, block: &Block, room: &mut Room) {
        if self.setup.sizes.blocks.is_none() {
            return;
        }
        for (source, offsets) in [Source::Keys, Source::Values].into_iter().zip(&mut room.offsets) {
            let ([(rows, place), _], size) = self.tensors(source);
            let last_head = (block.heads.end - 1) * place.head;
            for run in room.runs.iter().flat_map(|run| self.parts(block.sample, run)) {
                let first = place.offset(0, 0, run.slots.start);
                let last = first + last_head + (run.slots.len() - 1) * place.row;
                // This proves to the kernels that the slots are inside the tensor.
                assert!(last + size <= rows.len(), "slots lie inside their tensor");
                let offsets = offsets[run.index..run.end()].iter_mut().enumerate();
                offsets.for_each(|(at, offset)| *offset = first + at * place.row);
            }
        }
    }

    /// Returns the keys or values of a sweep for each head of the block.
    fn streams(
        &self,
        block: &Block,
        sweep: &Sweep,
        source: Source,
        offsets: &[Vec<usize>; 2],
    ) -> impl Iterator<Item = Streams<C>> + use<T, C> {
        let (tensors, size) = self.tensors(source);
        let heads = block.heads.len();
        // A block of several heads has no past, so the heads of all its slots are equally far apart.
        let head_stride = tensors[0].1.head;
        let offsets = self.setup.sizes.blocks.map(|_| source.choose(&offsets[0], &offsets[1]));
        let stream = |start: &Start| {
            if let Some(offsets) = offsets {
                // `find_offsets` has proved that the slots are inside the tensor.
                let last = start.index + sweep.count.max(sweep.reach).saturating_sub(1) * sweep.step;
                assert!(last < offsets.len(), "the list has an offset for each slot");
                let first = tensors[0].0.as_ptr().wrapping_add(block.heads.start * head_stride);
                let (offsets, step) = (offsets.as_ptr(), sweep.step);
                return Stream { first, stride: 0, offsets, index: start.index, step };
            }
            let (rows, strides) = tensors[usize::from(start.is_past)];
            let stride = strides.row * sweep.step;
            let first = strides.offset(block.sample, block.heads.start, start.slot);
            let last = first + (heads - 1) * head_stride + (sweep.count - 1) * stride;
            // This proves to the kernels that the slots are inside the tensor.
            assert!(last + size <= rows.len(), "slots lie inside their tensor");
            let (first, offsets) = (rows.as_ptr().wrapping_add(first), core::ptr::null());
            Stream { first, stride, offsets, index: start.index, step: sweep.step }
        };
        let starts = sweep.starts();
        let unused =
            Stream { first: core::ptr::null(), stride: 0, offsets: core::ptr::null(), index: 0, step: 0 };
        let all = core::array::from_fn(|at| starts.get(at).map_or(unused, stream));
        let first =
            Streams { all, used: starts.len(), count: sweep.count, before: sweep.before, reach: sweep.reach };
        (0..heads).map(move |head| first.of_head(head * head_stride))
    }

    /// Returns the keys or values of this call and those of the past, with their strides, and the size of one of them.
    pub(crate) fn tensors(&self, source: Source) -> ([(&[C], Place); 2], usize) {
        let sizes = &self.setup.sizes;
        let (size, new, past, operands) = match source {
            Source::Keys => (
                sizes.head_size,
                self.inputs.key,
                self.inputs.past.map(|past| past[0]),
                [Operand::Key, Operand::PastKey],
            ),
            Source::Values => (
                sizes.value_size,
                self.inputs.value,
                self.inputs.past.map(|past| past[1]),
                [Operand::Value, Operand::PastValue],
            ),
        };
        let [of_new, of_past] = operands.map(|operand| self.setup.place(operand));
        ([(new, of_new), (past.unwrap_or(&[]), of_past)], size)
    }

    /// Returns the scales of the slots of a run, which is in one block, if each row has one.
    pub(crate) fn scales_of(
        &self,
        source: Source,
        sample: usize,
        head: usize,
        run: &Slots,
    ) -> Option<&[f32]> {
        let scales = self.inputs.scales?.of_rows(source)?;
        let Sizes { heads, keys, blocks, .. } = self.setup.sizes;
        let (outer, rows, slot) = match blocks {
            None => (sample, keys, run.slots.start),
            Some(Blocks { size, .. }) => (run.slots.start / size, size, run.slots.start % size),
        };
        Some(&scales[(outer * heads + head) * rows + slot..][..run.slots.len()])
    }

    /// Caps the scores of a row, adds the mask and hides the positions outside `visible`, which the row does not see.
    fn finish_scores(
        &self,
        block: &Block,
        visible: Range<usize>,
        row: Row,
        scores: &mut [f32],
        bias: Option<&[f32]>,
    ) {
        let op = &self.setup.op;
        if op.scores == Some(Scores::Products) {
            self.store_scores(block, row, scores.iter().copied(), 0.0);
        }
        if op.softcap > 0.0 {
            let all = if op.returns_hidden() { 0..scores.len() } else { visible.clone() };
            for score in &mut scores[all] {
                *score = op.softcap * (*score / op.softcap).tanh();
            }
        }
        if op.scores == Some(Scores::Capped) {
            self.store_scores(block, row, scores.iter().copied(), 0.0);
        }
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        if let Some(bias) = bias {
            for (score, bias) in scores[visible.clone()].iter_mut().zip(&bias[visible.clone()]) {
                *score = with_bias::<T>(*score, *bias);
            }
        }
        if op.scores == Some(Scores::Masked) {
            self.store_masked_scores(block, row, &visible, scores);
        }
    }

    /// Writes a row of scores after the mask. They contain the lowest number where the mask does, also where it
    /// hides a slot.
    fn store_masked_scores(&self, block: &Block, row: Row, visible: &Range<usize>, scores: &[f32]) {
        let mask = self.mask_of(block, row);
        let is_lowest = |slot| visible.contains(&slot) && mask.is_some_and(|mask| mask.is_lowest(slot));
        let scores = scores.iter().enumerate();
        let scores = scores.map(|(slot, score)| if is_lowest(slot) { T::LOWEST.to_f32() } else { *score });
        self.store_scores(block, row, scores, f32::NEG_INFINITY);
    }
}

/// Returns a score with the number of the mask.
pub(crate) fn with_bias<T: Float>(score: f32, bias: f32) -> f32 {
    // The score of a slot that is not read is not a number of this call. The lowest number absorbs every score.
    if bias <= T::LOWEST.to_f32() { bias } else { score + bias }
}

/// Returns rows of a list whose rows are `stride` numbers apart.
fn rows_of(list: &mut [f32], stride: usize, rows: Range<usize>) -> Rows {
    Rows { first: list.as_mut_ptr().wrapping_add(rows.start * stride), stride, count: rows.len() }
}

/// Adds the sums of unfinished groups, and clears these. Returns whether every sum is finite. Both lists are
/// [`padded`].
fn add_groups(sums: &mut [f32], groups: &mut [f32]) -> bool {
    // 0 times a finite number is 0, and 0 times NaN or infinity is NaN. The compiler uses vectors for these sums.
    let mut zeros = [0.0; LANES];
    for (sums, groups) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(groups.as_chunks_mut::<LANES>().0) {
        for ((sum, group), zero) in sums.iter_mut().zip(groups).zip(&mut zeros) {
            *sum += core::mem::take(group);
            *zero += *sum * 0.0;
        }
    }
    zeros == [0.0; LANES]
}

/// Returns whether no number is NaN or infinite. Without an early exit, the compiler uses vectors.
pub(crate) fn is_finite(numbers: &[f32]) -> bool {
    numbers.iter().fold(true, |all, number| all & number.is_finite())
}

/// Converts scores to weights in float64, like [`Weights`](crate::kernel::Weights).
fn weights_in_f64(scores: &mut [f32]) -> (f32, f32) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shift = f64::from(if most == f32::NEG_INFINITY { 0.0 } else { most });
    let mut sum = 0.0;
    for score in scores {
        let weight = (f64::from(*score) - shift).exp();
        sum += weight;
        *score = weight as f32;
    }
    (most, sum as f32)
}
