//! One chunk of the positions of a block.

use core::ops::Range;

use crate::aligned::padded;
use crate::block::{Block, Call, Row};
use crate::kernel::{Float, LANES, Rows, Stream, Streams};
use crate::operator::{Scores, Softmax};
use crate::room::Room;
use crate::setup::Blocking;
use crate::streams::{Start, Sweep, sweeps};

impl<T: Float> Call<'_, T> {
    /// Computes the result of one chunk in `room.part`. Returns `false` if no row sees any of its positions.
    pub(crate) fn chunk(&self, block: &Block, number: usize, room: &mut Room) -> bool {
        let Blocking { chunk, steps, .. } = self.setup.blocking;
        let score_stride = self.setup.blocking.score_stride();
        // The position of the first index of the lists of a room. An output of scores begins with slot 0.
        let base =
            if self.setup.op.scores.is_some() { 0 } else { room.positions.start + (number * chunk) as i64 };
        let end = base.saturating_add(chunk as i64).min(room.positions.end);
        let positions = base.max(room.positions.start)..end;
        let head_size = self.setup.sizes.head_size;
        let query_size = padded(head_size);
        let rows = block.rows.len();
        self.find_runs(block, base, &positions, room);
        if room.runs.is_empty() && self.setup.op.scores.is_none() {
            return false;
        }
        let total = self.setup.sizes.total();
        let all = self.segments(total as i64, 0, &(0..total as i64));
        let (read, used) = if self.setup.op.returns_hidden() {
            (all.as_slice(), total)
        } else {
            (room.runs.as_slice(), (positions.end - base) as usize)
        };
        let used = used.next_multiple_of(LANES);
        for sweep in sweeps(read, steps) {
            for (head, keys) in self.streams(block, &sweep, Part::Key).enumerate() {
                let queries = rows_of(&mut room.queries, query_size, head * rows, rows);
                let scores = rows_of(&mut room.scores, score_stride, head * rows, rows);
                // SAFETY: `Setup` has an instruction set of the machine (A4). The assertion in `streams` proves that
                // the slots are in K or the past (A2). The queries are padded with zeros. The runs end inside the
                // chunk, so the scores have an element for each key.
                unsafe { (self.kernels.products)(queries, keys, head_size, scores) };
            }
        }
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
            (room.part.most[at], room.part.weight[at]) = (most, weight);
            if self.setup.op.scores == Some(Scores::Weights) {
                let weights = scores.iter().map(|score| if weight == 0.0 { 0.0 } else { score / weight });
                self.store_scores(block, row, weights, 0.0);
            }
        }
        self.sum_values(block, room);
        true
    }

    /// Sums the weighted values of a chunk in `room.part`.
    fn sum_values(&self, block: &Block, room: &mut Room) {
        let (steps, score_stride) = (self.setup.blocking.steps, self.setup.blocking.score_stride());
        let size = self.setup.sizes.value_size;
        let (row_size, rows) = (padded(size), block.rows.len());
        room.part.sums.fill(0.0);
        for sweep in sweeps(&room.runs, steps) {
            for (head, values) in self.streams(block, &sweep, Part::Value).enumerate() {
                let weights = rows_of(&mut room.scores, score_stride, head * rows, rows);
                let group = rows_of(&mut room.group, row_size, head * rows, rows);
                let sums = rows_of(&mut room.part.sums, row_size, head * rows, rows);
                // SAFETY: The instruction set and the slots are as for the products. The weights have an element for
                // each slot. The rows of the group and of the sums are padded to a multiple of `LANES`.
                unsafe { (self.kernels.weighted_sums)(weights, values, size, group, sums) };
            }
        }
        for (sum, group) in room.part.sums.iter_mut().zip(room.group.iter_mut()) {
            *sum += core::mem::take(group);
        }
    }

    /// Returns the keys or values of a sweep for each head of the block.
    fn streams(&self, block: &Block, sweep: &Sweep, part: Part) -> impl Iterator<Item = Streams<T>> + use<T> {
        let sizes = &self.setup.sizes;
        let (size, new, past) = match part {
            Part::Key => (sizes.head_size, self.inputs.key, self.inputs.past.map(|past| past[0])),
            Part::Value => (sizes.value_size, self.inputs.value, self.inputs.past.map(|past| past[1])),
        };
        let heads = block.heads.len();
        // A block of several heads has no past, so the heads of all its slots are equally far apart.
        let head_stride = sizes.strides(sizes.heads, sizes.keys, size).head;
        let stream = |start: &Start| {
            let (rows, strides) = if start.is_past {
                (past.unwrap_or(&[]), sizes.strides_by_head(sizes.past, size))
            } else {
                (new, sizes.strides(sizes.heads, sizes.keys, size))
            };
            let first = strides.offset(block.sample, block.heads.start, start.slot);
            let last = first + (heads - 1) * head_stride + (sweep.count - 1) * strides.row;
            // This proves to the kernels that the slots are inside the tensor.
            assert!(last + size <= rows.len(), "slots lie inside their tensor");
            Stream { first: rows.as_ptr().wrapping_add(first), stride: strides.row, index: start.index }
        };
        let starts = sweep.starts();
        let unused = Stream { first: core::ptr::null(), stride: 0, index: 0 };
        let all = core::array::from_fn(|at| starts.get(at).map_or(unused, stream));
        let first = Streams { all, used: starts.len(), count: sweep.count, before: sweep.before };
        (0..heads).map(move |head| first.of_head(head * head_stride))
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
                // The score of a slot that is not read is not a number of this call. The lowest number absorbs
                // every score.
                *score = if *bias <= T::LOWEST.to_f32() { *bias } else { *score + *bias };
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

/// Keys or values.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
}

/// Returns rows of a list whose rows are `stride` numbers apart.
fn rows_of(list: &mut [f32], stride: usize, first: usize, count: usize) -> Rows {
    Rows { first: list.as_mut_ptr().wrapping_add(first * stride), stride, count }
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
