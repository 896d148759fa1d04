//! One item of a call: a block of rows of one or more heads of one sample.
//!
//! A row is a query of one head. Rows that share a head of keys are in the order `[queries, heads of the
//! group]`. The positions that any row of a block sees are processed in chunks, in the manner of flash
//! attention: each chunk gives the largest score, the sum of the weights and the weighted sum of the values
//! of each row, and these are merged with those of the chunks before it. So the memory of a call does not
//! grow with the context.
//!
//! Slots that no row of the block sees are not read, unless the scores are an output.

use core::ops::Range;

use crate::element::Float;
use crate::kernel::{Kernels, LANES, Rows, Run};
use crate::mask::Mask;
use crate::operands::{Inputs, Outputs, Valid};
use crate::operator::{Scores, Softmax};
use crate::prepared::{Blocking, Prepared};
use crate::sizes::{Sizes, Strides};

/// The memory in which one thread works. A block of rows of a head has one entry of each list for each row.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// The scaled queries, padded with zeros to a multiple of [`LANES`].
    queries: Vec<f32>,
    /// The scores of a chunk, and then the weights.
    scores: Vec<f32>,
    /// The numbers that the mask adds to the scores of a chunk.
    bias: Vec<f32>,
    /// The result of one chunk.
    part: Partial,
    /// The result of all chunks so far.
    total: Partial,
    /// The slots of a chunk that any row sees.
    runs: Vec<Slots>,
    /// Whether each row sees a slot that the mask does not hide with the lowest number.
    has_a_slot: Vec<bool>,
}

/// The result of attention over a part of the positions, for each row of a block.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    /// The largest score.
    most: Vec<f32>,
    /// The sum of the weights, which are relative to the largest score.
    weight: Vec<f32>,
    /// The weighted sum of the values, padded to a multiple of [`LANES`].
    sums: Vec<f32>,
}

/// Consecutive positions of a chunk in consecutive slots.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slots {
    /// The index of the first position in the chunk.
    index: usize,
    is_past: bool,
    slots: Range<usize>,
}

impl Room {
    /// Allocates memory for the blocks of a prepared call.
    pub(crate) fn new(prepared: &Prepared) -> Self {
        let Blocking { heads, rows, chunk, .. } = prepared.blocking;
        let Sizes { head_size, value_size, .. } = prepared.sizes;
        let all = heads * rows;
        let padded = |size: usize| size.next_multiple_of(LANES);
        Self {
            queries: vec![0.0; all * padded(head_size)],
            scores: vec![0.0; all * chunk],
            bias: if prepared.mask.is_some() { vec![0.0; all * chunk] } else { Vec::new() },
            part: Partial::new(all, padded(value_size)),
            total: Partial::new(all, padded(value_size)),
            runs: Vec::with_capacity(if prepared.mask.is_some() { chunk / 2 + 2 } else { 2 }),
            has_a_slot: Vec::with_capacity(all),
        }
    }
}

impl Partial {
    /// Allocates the result of a block of a prepared call.
    pub(crate) fn of(prepared: &Prepared) -> Self {
        let Blocking { heads, rows, .. } = prepared.blocking;
        Self::new(heads * rows, prepared.sizes.value_size.next_multiple_of(LANES))
    }

    fn new(rows: usize, size: usize) -> Self {
        Self { most: vec![0.0; rows], weight: vec![0.0; rows], sums: vec![0.0; rows * size] }
    }

    fn clear(&mut self) {
        self.most.fill(f32::NEG_INFINITY);
        self.weight.fill(0.0);
        self.sums.fill(0.0);
    }

    /// Merges the result for later positions into this one.
    fn merge(&mut self, later: &Self) {
        let size = self.sums.len().checked_div(self.most.len()).unwrap_or(0);
        let totals = self.most.iter_mut().zip(&mut self.weight).zip(self.sums.chunks_exact_mut(size.max(1)));
        let parts = later.most.iter().zip(&later.weight).zip(later.sums.chunks_exact(size.max(1)));
        for (((most, weight), sums), ((&later_most, &later_weight), later_sums)) in totals.zip(parts) {
            if later_weight == 0.0 {
                continue; // the row sees nothing in the later part
            }
            if *weight == 0.0 {
                (*most, *weight) = (later_most, later_weight);
                sums.copy_from_slice(later_sums);
                continue;
            }
            let max = most.max(later_most);
            let (factor, later_factor) = (weight_of(*most, max), weight_of(later_most, max));
            *weight = *weight * factor + later_weight * later_factor;
            for (sum, later) in sums.iter_mut().zip(later_sums) {
                *sum = *sum * factor + later * later_factor;
            }
            *most = max;
        }
    }
}

/// Returns `exp(score - max)`. If both are negative infinity, every weight is NaN, which stays.
fn weight_of(score: f32, max: f32) -> f32 {
    if score == max { 1.0 } else { (score - max).exp() }
}

/// The memory of a call.
pub(crate) struct Call<'a, T> {
    pub(crate) prepared: &'a Prepared,
    inputs: &'a Inputs<'a, T>,
    output: *mut T,
    present: Option<[*mut T; 2]>,
    scores: *mut T,
    kernels: Kernels<T>,
}

// SAFETY: Threads share the inputs, and each item writes other elements of the outputs, which the call borrows
// mutably.
unsafe impl<T: Float> Sync for Call<'_, T> {}

/// The rows of one item.
#[derive(Clone, Debug)]
struct Block {
    sample: usize,
    /// The heads of keys.
    heads: Range<usize>,
    /// The rows of each head.
    rows: Range<usize>,
    /// The number of tokens of the sample.
    tokens: i64,
    /// The position of the first query of the call.
    first: i64,
}

impl<'a, T: Float> Call<'a, T> {
    /// Joins the operands of a call, which must fit the prepared shapes.
    pub(crate) fn new(
        prepared: &'a Prepared,
        inputs: &'a Inputs<'a, T>,
        outputs: &'a mut Outputs<'_, T>,
    ) -> Self {
        Self {
            prepared,
            inputs,
            output: outputs.output.first,
            present: outputs.present.as_ref().map(|[key, value]| [key.first, value.first]),
            scores: outputs.scores.as_ref().map_or(core::ptr::null_mut(), |scores| scores.first),
            kernels: T::kernels(prepared.isa),
        }
    }

    /// Writes the past rows and the new ones to the presents.
    pub(crate) fn copy_present(&self) {
        let Sizes { batch, heads, keys, past, head_size, value_size, .. } = self.prepared.sizes;
        let Some(presents) = self.present else { return };
        let pasts = self.inputs.past.unwrap_or([&[], &[]]);
        let news = [self.inputs.key, self.inputs.value];
        for (((present, of_past), of_new), size) in
            presents.into_iter().zip(pasts).zip(news).zip([head_size, value_size])
        {
            let (from, to) = (self.prepared.sizes.strides(heads, keys, size), self.present_strides(size));
            let old = self.prepared.sizes.strides_by_head(past, size);
            for (sample, head) in (0..batch).flat_map(|sample| (0..heads).map(move |head| (sample, head))) {
                let copy = |row: &[T], at: usize| {
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

    fn present_strides(&self, size: usize) -> Strides {
        self.prepared.sizes.strides_by_head(self.prepared.sizes.total(), size)
    }

    /// Computes one item: the outputs of one block of rows.
    pub(crate) fn item(&self, item: usize, room: &mut Room) {
        let block = self.block(item);
        self.start(&block, room);
        room.total.clear();
        for number in self.chunks(&block) {
            if self.chunk(&block, number, room) {
                room.total.merge(&room.part);
            }
        }
        self.store(&block, &mut room.total);
    }

    /// Computes one chunk of an item, and stores its result in `part`. The chunk is counted from the first one
    /// of the item. Nothing is visible in a chunk after the last one.
    pub(crate) fn part(&self, item: usize, chunk: usize, room: &mut Room, part: &mut Partial) {
        let block = self.block(item);
        part.clear();
        if let Some(number) = self.chunks(&block).nth(chunk) {
            self.start(&block, room);
            if self.chunk(&block, number, room) {
                core::mem::swap(part, &mut room.part);
            }
        }
    }

    /// Computes an item from the results of its chunks.
    pub(crate) fn join(&self, item: usize, parts: &[Partial], room: &mut Room) {
        room.total.clear();
        parts.iter().for_each(|part| room.total.merge(part));
        self.store(&self.block(item), &mut room.total);
    }

    /// Returns the number of multiplications of a call.
    pub(crate) fn multiplications(&self) -> usize {
        let sizes = &self.prepared.sizes;
        let cached = |tokens| self.prepared.rule.cached(tokens).count();
        let slots: usize = match self.inputs.valid {
            Valid::All => sizes.batch * sizes.total(),
            Valid::Lengths(lengths) => lengths.iter().map(|tokens| cached(*tokens)).sum(),
        };
        slots.saturating_mul(sizes.heads * sizes.rows()).saturating_mul(sizes.head_size + sizes.value_size)
    }

    fn start(&self, block: &Block, room: &mut Room) {
        self.scale_queries(block, room);
        self.find_rows_with_a_slot(block, room);
    }

    /// Returns the numbers of the chunks that contain a position that any row of a block sees.
    fn chunks(&self, block: &Block) -> Range<i64> {
        if self.prepared.blocking.is_whole {
            return 0..1;
        }
        let (positions, chunk) = (self.positions(block), self.prepared.blocking.chunk as i64);
        if positions.is_empty() { 0..0 } else { positions.start / chunk..(positions.end - 1) / chunk + 1 }
    }

    fn block(&self, item: usize) -> Block {
        let Prepared { sizes, blocking, .. } = self.prepared;
        let row_blocks = sizes.rows().div_ceil(blocking.rows);
        let head_blocks = sizes.heads.div_ceil(blocking.heads);
        let (row, rest) = (item % row_blocks * blocking.rows, item / row_blocks);
        let (head, sample) = (rest % head_blocks * blocking.heads, rest / head_blocks);
        let (tokens, first) = match self.inputs.valid {
            Valid::All => (sizes.total() as i64, sizes.past as i64),
            Valid::Lengths(lengths) => (lengths[sample], lengths[sample] - sizes.queries as i64),
        };
        Block {
            sample,
            heads: head..(head + blocking.heads).min(sizes.heads),
            rows: row..(row + blocking.rows).min(sizes.rows()),
            tokens,
            first,
        }
    }

    /// Returns the position of a row's query.
    fn position(&self, block: &Block, row: usize) -> i64 {
        block.first + (row / self.prepared.sizes.group()) as i64
    }

    /// Returns the positions that any row of a block sees. Both ends increase with the row.
    fn positions(&self, block: &Block) -> Range<i64> {
        let of_row = |row| self.prepared.rule.positions(block.tokens, self.position(block, row));
        of_row(block.rows.start).start..of_row(block.rows.end - 1).end
    }

    fn scale_queries(&self, block: &Block, room: &mut Room) {
        let sizes = &self.prepared.sizes;
        let size = sizes.head_size;
        let scale = self.prepared.op.scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt());
        let strides = sizes.strides(sizes.query_heads, sizes.queries, size);
        let padded = size.next_multiple_of(LANES);
        for ((head, row), scaled) in block.each().zip(room.queries.chunks_exact_mut(padded.max(1))) {
            let (head, query) = (head * sizes.group() + row % sizes.group(), row / sizes.group());
            let first = strides.offset(block.sample, head, query);
            let scaled = &mut scaled[..size];
            T::widen(&self.inputs.query[first..first + size], scaled);
            scaled.iter_mut().for_each(|element| *element *= scale);
        }
    }

    /// Computes the result of one chunk in `room.part`. Returns `false` if no row sees any of its positions.
    fn chunk(&self, block: &Block, number: i64, room: &mut Room) -> bool {
        let Blocking { chunk, slots, is_whole, .. } = self.prepared.blocking;
        let positions = self.positions(block);
        // The position of the first index of the lists of a room.
        let base = match is_whole {
            true if self.prepared.op.is_ring => positions.start,
            true => 0,
            false => number * chunk as i64,
        };
        let positions = base.max(positions.start)..base.saturating_add(chunk as i64).min(positions.end);
        let Sizes { head_size, value_size, .. } = self.prepared.sizes;
        let (query_size, sum_size) = (head_size.next_multiple_of(LANES), value_size.next_multiple_of(LANES));
        let rows = block.rows.len();
        self.find_runs(block, base, &positions, room);
        let seen = core::mem::take(&mut room.runs);
        if seen.is_empty() && self.prepared.op.scores.is_none() {
            room.runs = seen;
            return false;
        }
        let total = self.prepared.sizes.total();
        let all = self.segments(0, &(0..total as i64));
        let (read, used) = match self.prepared.op.scores {
            None => (seen.as_slice(), (positions.end - base) as usize),
            Some(_) => (all.as_slice(), total),
        };
        let used = used.next_multiple_of(LANES);
        for (run, head) in interleaved(read, block.heads.len(), slots) {
            let queries = rows_of(&mut room.queries, query_size, head * rows, rows);
            let scores = rows_of(&mut room.scores[run.index..], chunk, head * rows, rows);
            let keys = self.run(block, head, &run, Part::Key);
            // SAFETY: `Prepared` has an instruction set of the machine. The slots are in K or the past. The
            // queries are padded with zeros. The run ends inside the chunk, so the scores have an element for
            // each key.
            unsafe { (self.kernels.products)(queries, keys, head_size, scores) };
        }
        for (at, place) in block.each().enumerate() {
            let scores = &mut room.scores[at * chunk..][..used];
            let bias = room.bias.get(at * chunk..).and_then(|bias| bias.get(..used));
            self.finish_scores(block, base, place, scores, bias);
            let (most, weight) = if self.prepared.op.softmax == Softmax::Float64 {
                weights_in_f64(scores)
            } else {
                // SAFETY: `Prepared` has an instruction set of the machine. `used` is a multiple of `LANES`.
                unsafe { (self.kernels.weights)(scores.as_mut_ptr(), used) }
            };
            (room.part.most[at], room.part.weight[at]) = (most, weight);
            if self.prepared.op.scores == Some(Scores::Weights) {
                let weights = scores.iter().map(|score| if weight == 0.0 { 0.0 } else { score / weight });
                self.store_scores(block, place, weights);
            }
        }
        room.part.sums.fill(0.0);
        for (run, head) in interleaved(&seen, block.heads.len(), slots) {
            let weights = rows_of(&mut room.scores[run.index..], chunk, head * rows, rows);
            let sums = rows_of(&mut room.part.sums, sum_size, head * rows, rows);
            let values = self.run(block, head, &run, Part::Value);
            // SAFETY: As for the products. The sums are padded.
            unsafe { (self.kernels.weighted_sums)(weights, values, value_size, sums) };
        }
        room.runs = seen;
        true
    }

    /// Stores the runs of positions that any row of the block sees in `room.runs`, and the mask of the chunk in
    /// `room.bias`.
    fn find_runs(&self, block: &Block, base: i64, positions: &Range<i64>, room: &mut Room) {
        room.runs.clear();
        let segments = self.segments(base, positions);
        let (Some(mask), Some(layout)) = (self.inputs.mask, &self.prepared.mask) else {
            room.runs.extend(segments.into_iter().filter(|run| !run.slots.is_empty()));
            return;
        };
        let chunk = self.prepared.blocking.chunk;
        let rows = block.heads.len() * block.rows.len();
        for (at, place) in block.each().enumerate() {
            let bias = &mut room.bias[at * chunk..][..chunk];
            bias.fill(f32::NEG_INFINITY);
            let (head, query) = self.place(place);
            let row = layout.row(mask, [block.sample, head, query]);
            let visible = self.indices(block, base, place.1);
            let hides_lowest = room.has_a_slot.get(at).copied().unwrap_or(false);
            for run in &segments {
                let first = self.index_in_mask(run);
                let shared = visible.start.max(run.index)..visible.end.min(run.index + run.slots.len());
                if !shared.is_empty() {
                    let in_mask = first + shared.start - run.index;
                    row.fill(in_mask, hides_lowest, &mut bias[shared]);
                }
            }
        }
        for run in segments {
            let mut start = None;
            for offset in 0..=run.slots.len() {
                let is_seen = offset < run.slots.len()
                    && (0..rows).any(|at| room.bias[at * chunk + run.index + offset] != f32::NEG_INFINITY);
                match (start, is_seen) {
                    (None, true) => start = Some(offset),
                    (Some(first), false) => {
                        room.runs.push(run.part(first..offset));
                        start = None;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Records which rows see a slot that a mask of numbers does not hide with the lowest one.
    ///
    /// A runtime adds the lowest number to a score, which absorbs the score. So the slots that it hides have
    /// the weight 0 if there is any other slot, and equal weights if there is none.
    fn find_rows_with_a_slot(&self, block: &Block, room: &mut Room) {
        room.has_a_slot.clear();
        let (Some(mask @ Mask::Float(_)), Some(layout)) = (self.inputs.mask, &self.prepared.mask) else {
            return;
        };
        let is_exact = self.prepared.op.scores.is_some();
        room.has_a_slot.extend(block.each().map(|place| {
            let (head, query) = self.place(place);
            let row = layout.row(mask, [block.sample, head, query]);
            let positions = self.prepared.rule.positions(block.tokens, self.position(block, place.1));
            !is_exact
                && self.segments(0, &positions).iter().any(|run| {
                    let first = self.index_in_mask(run);
                    row.has_a_slot(first..first + run.slots.len())
                })
        }));
    }

    /// Returns the slots of consecutive positions. The indices count from the position `base`.
    fn segments(&self, base: i64, positions: &Range<i64>) -> [Slots; 2] {
        let index = (positions.start - base) as usize;
        if self.prepared.has_past {
            let past = self.prepared.sizes.past;
            let (start, end) = (positions.start as usize, positions.end as usize);
            let split = past.clamp(start, end);
            return [
                Slots { index, is_past: true, slots: start..split },
                Slots {
                    index: index + split - start,
                    is_past: false,
                    slots: split - past.min(split)..end - past.min(end),
                },
            ];
        }
        let [first, second] = self.prepared.rule.slots(positions.clone());
        let index_of_second = index + first.len();
        [
            Slots { index, is_past: false, slots: first },
            Slots { index: index_of_second, is_past: false, slots: second },
        ]
    }

    /// Returns the index of a run's first slot in the last dimension of a mask.
    fn index_in_mask(&self, run: &Slots) -> usize {
        run.slots.start + if run.is_past { 0 } else { self.prepared.sizes.past }
    }

    /// Returns the indices of a chunk that a row sees.
    fn indices(&self, block: &Block, base: i64, row: usize) -> Range<usize> {
        let positions = self.prepared.rule.positions(block.tokens, self.position(block, row));
        let index =
            |position: i64| usize::try_from(position - base).unwrap_or(0).min(self.prepared.blocking.chunk);
        index(positions.start)..index(positions.end)
    }

    /// Returns the query head and the query of a row.
    fn place(&self, (head, row): (usize, usize)) -> (usize, usize) {
        let group = self.prepared.sizes.group();
        (head * group + row % group, row / group)
    }

    /// Returns a run of keys or values. `head` counts from the first head of the block.
    fn run(&self, block: &Block, head: usize, run: &Slots, part: Part) -> Run<T> {
        let sizes = &self.prepared.sizes;
        let (size, new, past) = match part {
            Part::Key => (sizes.head_size, self.inputs.key, self.inputs.past.map(|past| past[0])),
            Part::Value => (sizes.value_size, self.inputs.value, self.inputs.past.map(|past| past[1])),
        };
        let (rows, strides) = if run.is_past {
            (past.unwrap_or(&[]), sizes.strides_by_head(sizes.past, size))
        } else {
            (new, sizes.strides(sizes.heads, sizes.keys, size))
        };
        let first = strides.offset(block.sample, block.heads.start + head, run.slots.start);
        let last = first + (run.slots.len() - 1) * strides.row;
        // This proves to the kernels that the slots are inside the tensor.
        assert!(last + size <= rows.len(), "slots lie inside their tensor");
        Run {
            first: rows.as_ptr().wrapping_add(first),
            stride: strides.row,
            count: run.slots.len(),
            ahead: if sizes.is_rank_3 {
                size
            } else if block.rows.len() == 1 {
                0
            } else {
                16 * strides.row
            },
        }
    }

    /// Caps the scores of a row, adds the mask and hides the positions that the row does not see.
    fn finish_scores(
        &self,
        block: &Block,
        base: i64,
        place: (usize, usize),
        scores: &mut [f32],
        bias: Option<&[f32]>,
    ) {
        let op = &self.prepared.op;
        let visible = self.indices(block, base, place.1);
        if op.scores == Some(Scores::Products) {
            self.store_scores(block, place, scores.iter().copied());
        }
        if op.softcap > 0.0 {
            let all = if op.scores.is_some() { 0..scores.len() } else { visible.clone() };
            for score in &mut scores[all] {
                *score = op.softcap * (*score / op.softcap).tanh();
            }
        }
        if op.scores == Some(Scores::Capped) {
            self.store_scores(block, place, scores.iter().copied());
        }
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        if let Some(bias) = bias {
            for (score, bias) in scores[visible.clone()].iter_mut().zip(&bias[visible]) {
                // The score of a slot that is not read is not a number of this call. The lowest number absorbs
                // every score.
                *score = if *bias <= T::LOWEST.to_f32() { *bias } else { *score + *bias };
            }
        }
        if op.scores == Some(Scores::Masked) {
            self.store_scores(block, place, scores.iter().copied());
        }
    }

    /// Writes a row of `qk_matmul_output`.
    fn store_scores(&self, block: &Block, place: (usize, usize), scores: impl Iterator<Item = f32>) {
        let Sizes { query_heads, queries, .. } = self.prepared.sizes;
        let total = self.prepared.sizes.total();
        let (head, query) = self.place(place);
        let first = ((block.sample * query_heads + head) * queries + query) * total;
        for (at, score) in scores.enumerate().take(total) {
            // SAFETY: `check` compared the length of the output with its shape, and the element is one of this
            // shape. Each row is written by one item.
            unsafe { self.scores.wrapping_add(first + at).write(T::of_f32(score)) };
        }
    }

    /// Divides the sums of a block by the weights, and writes them to `Y`.
    fn store(&self, block: &Block, total: &mut Partial) {
        let sizes = &self.prepared.sizes;
        let size = sizes.value_size;
        let strides = sizes.strides(sizes.query_heads, sizes.queries, size);
        let padded = size.next_multiple_of(LANES);
        let rows = total.weight.iter().zip(total.sums.chunks_exact_mut(padded.max(1)));
        for (place, (&weight, sums)) in block.each().zip(rows) {
            let (head, query) = self.place(place);
            let sums = &mut sums[..size];
            if weight == 0.0 {
                sums.fill(0.0); // the row sees nothing
            } else {
                sums.iter_mut().for_each(|sum| *sum /= weight);
            }
            let output = self.output.wrapping_add(strides.offset(block.sample, head, query));
            // SAFETY: `check` compared the length of the output with its shape, and the row is one of this shape.
            unsafe { output.write_bytes(0, size) };
            // SAFETY: As before. The row is initialised, and only this item uses it.
            let output = unsafe { core::slice::from_raw_parts_mut(output, size) };
            T::narrow(sums, output);
        }
    }
}

/// Keys or values.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
}

impl Block {
    /// Returns the head and the row of each row of the block, in the order of the lists of a [`Room`].
    fn each(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let rows = self.rows.clone();
        self.heads.clone().flat_map(move |head| rows.clone().map(move |row| (head, row)))
    }
}

impl Slots {
    /// Returns a part of the run, by the distance from its first slot.
    fn part(&self, part: Range<usize>) -> Self {
        let slots = self.slots.start + part.start..self.slots.start + part.end;
        Self { index: self.index + part.start, is_past: self.is_past, slots }
    }
}

/// Returns each run with each head. Runs are cut into parts of `slots`, and all heads read one part before the
/// next one.
fn interleaved(runs: &[Slots], heads: usize, slots: usize) -> impl Iterator<Item = (Slots, usize)> {
    runs.iter().flat_map(move |run| {
        let count = run.slots.len();
        (0..count.div_ceil(slots)).flat_map(move |part| {
            let part = run.part(part * slots..(part * slots).saturating_add(slots).min(count));
            (0..heads).map(move |head| (part.clone(), head))
        })
    })
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
