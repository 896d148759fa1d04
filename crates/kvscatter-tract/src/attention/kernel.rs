//! The attention kernel. Queries that share a head of keys are processed in blocks, one key at a time.
//!
//! All sums are in float32. A block of queries fits into the first-level CPU cache, so each key and value is
//! read from memory once for each block. The kernel does not read keys that are masked for all queries of the
//! block, unless the scores are an output. It does not read values whose weight is zero for all queries of
//! the block. A NaN in such rows has no effect.

use std::ops::Range;

use super::float::Float;
use super::mask::Mask;
use super::operator::{Scores, Window};
use super::shapes::Sizes;

/// The number of queries of one block.
const BLOCK: usize = 16;

/// The number of partial sums of a dot product. It is enough for the widest registers.
const LANES: usize = 16;

/// A tensor of rows, `[batch, heads, length, size]` or `[batch, length, heads, size]`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    values: &'a [T],
    size: usize,
    /// The strides of batch, heads and length, in elements.
    strides: [usize; 3],
}

impl<'a, T> Rows<'a, T> {
    /// Creates the tensor. `values` must fill the shape.
    pub(super) fn new(values: &'a [T], heads: usize, length: usize, size: usize, heads_inside: bool) -> Self {
        Self { values, size, strides: strides(heads, length, size, heads_inside) }
    }

    pub(super) fn row(&self, batch: usize, head: usize, index: usize) -> &'a [T] {
        let first = offset(self.strides, [batch, head, index]);
        &self.values[first..first + self.size]
    }
}

/// Returns the strides of batch, heads and length, in elements.
fn strides(heads: usize, length: usize, size: usize, heads_inside: bool) -> [usize; 3] {
    let of_batch = heads * length * size;
    if heads_inside { [of_batch, size, heads * size] } else { [of_batch, length * size, size] }
}

fn offset(strides: [usize; 3], at: [usize; 3]) -> usize {
    strides.iter().zip(at).map(|(stride, index)| stride * index).sum()
}

/// The inputs and attributes of one call.
pub(super) struct Call<'a, T> {
    pub sizes: Sizes,
    pub query: Rows<'a, T>,
    pub key: Rows<'a, T>,
    pub value: Rows<'a, T>,
    pub mask: Option<Mask<'a, T>>,
    /// The values of `nonpad_kv_seqlen`, at most the number of keys.
    pub lengths: Option<&'a [i64]>,
    pub scale: f32,
    pub softcap: f32,
    pub window: Window,
    pub softmax_in_f64: bool,
}

/// The outputs, which must have the shapes of the call.
pub(super) struct Results<'a, T> {
    pub output: &'a mut [T],
    pub scores: Option<(Scores, &'a mut [T])>,
}

/// Consecutive queries, in the order `[queries, heads that share the head of keys]`, that are processed
/// together.
#[derive(Clone, Copy)]
struct Block {
    sample: usize,
    /// The index of the head of keys.
    head: usize,
    first: usize,
    count: usize,
    /// The number of query heads that share the head of keys.
    group: usize,
}

impl Block {
    /// Returns the head and the index of a query.
    fn query(&self, at: usize) -> (usize, usize) {
        let at = self.first + at;
        (self.head * self.group + at % self.group, at / self.group)
    }
}

/// The memory of one block, which the next block uses again.
#[derive(Default)]
struct Room {
    /// The scaled queries, `[BLOCK, head size]`.
    queries: Vec<f32>,
    /// The mask, then the scores, then the weights, `[BLOCK, keys]`.
    scores: Vec<f32>,
    /// The weighted sums, `[BLOCK, value size]`.
    sums: Vec<f32>,
    /// One key or value as float32.
    row: Vec<f32>,
}

impl<T: Float> Call<'_, T> {
    /// Computes the outputs.
    pub(super) fn run(&self, results: &mut Results<'_, T>) {
        let Sizes { batch, heads, query_heads, queries, head_size, value_size, .. } = self.sizes;
        // The other sizes of an empty tensor may be arbitrarily large, so do not allocate memory for them.
        if batch == 0 || heads == 0 || queries == 0 {
            return;
        }
        let group = query_heads / heads;
        let mut room = Room {
            queries: vec![0.0; BLOCK * head_size],
            scores: Vec::new(),
            sums: vec![0.0; BLOCK * value_size],
            row: vec![0.0; head_size.max(value_size)],
        };
        for sample in 0..batch {
            for head in 0..heads {
                let all = queries * group;
                for first in (0..all).step_by(BLOCK) {
                    let block = Block { sample, head, first, count: BLOCK.min(all - first), group };
                    self.block(&block, &mut room, results);
                }
            }
        }
    }

    fn block(&self, block: &Block, room: &mut Room, results: &mut Results<'_, T>) {
        let keys = if results.scores.is_some() { 0..self.sizes.total() } else { self.keys_of(block) };
        self.start(block, &keys, room);
        self.score(block, &keys, room, results);
        for weights in room.scores.chunks_exact_mut(keys.len().max(1)) {
            softmax(weights, self.softmax_in_f64);
        }
        if let Some((Scores::Weights, scores)) = &mut results.scores {
            for at in 0..block.count {
                for key in keys.clone() {
                    scores[self.score_at(block, at, key)] = T::of_f32(room.scores[at * keys.len() + key]);
                }
            }
        }
        self.sum(block, &keys, room);
        self.finish(block, room, results);
    }

    /// Returns the keys that a query may attend to because of the window and the length.
    fn visible(&self, sample: usize, index: usize) -> Range<usize> {
        let length = self.lengths.and_then(|lengths| lengths.get(sample)).copied();
        let total = to_i64(self.sizes.total());
        let offset = length.map_or(to_i64(self.sizes.past), |length| length - to_i64(self.sizes.queries));
        let position = offset + to_i64(index);
        let mut end = length.unwrap_or(total).min(total);
        if self.window.is_causal {
            end = end.min(position + 1);
        }
        if let Some(right) = self.window.right {
            end = end.min(position.saturating_add(to_i64(right)).saturating_add(1));
        }
        let start = self.window.left.map_or(0, |left| position.saturating_sub(to_i64(left)));
        let end = usize::try_from(end).unwrap_or(0);
        usize::try_from(start).unwrap_or(0).min(end)..end
    }

    /// Returns the keys that any query of a block may attend to. Both ends of the range increase with the
    /// query's index.
    fn keys_of(&self, block: &Block) -> Range<usize> {
        let (_, first) = block.query(0);
        let (_, last) = block.query(block.count - 1);
        self.visible(block.sample, first).start..self.visible(block.sample, last).end
    }

    /// Scales the queries, and initialises their scores with the mask.
    fn start(&self, block: &Block, keys: &Range<usize>, room: &mut Room) {
        let size = self.sizes.head_size;
        room.scores.clear();
        room.scores.resize(block.count * keys.len(), f32::NEG_INFINITY);
        for at in 0..block.count {
            let (head, index) = block.query(at);
            let row = self.query.row(block.sample, head, index);
            for (scaled, element) in room.queries[at * size..][..size].iter_mut().zip(row) {
                *scaled = element.to_f32() * self.scale;
            }
            let visible = self.visible(block.sample, index);
            let first = at * keys.len() + visible.start - keys.start;
            let bias = &mut room.scores[first..first + visible.len()];
            match &self.mask {
                Some(mask) => mask.fill([block.sample, head, index], visible, bias),
                None => bias.fill(0.0),
            }
        }
    }

    /// Adds the products of queries and keys to the scores.
    fn score(&self, block: &Block, keys: &Range<usize>, room: &mut Room, results: &mut Results<'_, T>) {
        let size = self.sizes.head_size;
        for key in keys.clone() {
            let column = key - keys.start;
            let of_key = |at: usize| at * keys.len() + column;
            let is_seen = |at: usize| room.scores[of_key(at)] != f32::NEG_INFINITY;
            if results.scores.is_none() && !(0..block.count).any(is_seen) {
                continue;
            }
            let row = T::widen(self.key.row(block.sample, block.head, key), &mut room.row[..size]);
            for at in 0..block.count {
                let bias = room.scores[of_key(at)];
                if results.scores.is_none() && bias == f32::NEG_INFINITY {
                    continue;
                }
                let raw = dot(&room.queries[at * size..][..size], row);
                let capped = self.cap(raw);
                // A masked key stays masked for every score. Adding infinity to negative infinity would give
                // NaN.
                let biased = if bias == f32::NEG_INFINITY { bias } else { capped + bias };
                room.scores[of_key(at)] = biased;
                if let Some((which, scores)) = &mut results.scores {
                    let value = match which {
                        Scores::Raw => raw,
                        Scores::Capped => capped,
                        Scores::Biased | Scores::Weights => biased,
                    };
                    scores[self.score_at(block, at, key)] = T::of_f32(value);
                }
            }
        }
    }

    fn cap(&self, score: f32) -> f32 {
        if self.softcap > 0.0 { self.softcap * (score / self.softcap).tanh() } else { score }
    }

    /// Returns the index of a score in `[batch, query heads, queries, keys]`.
    fn score_at(&self, block: &Block, at: usize, key: usize) -> usize {
        let (head, index) = block.query(at);
        let Sizes { query_heads, queries, .. } = self.sizes;
        ((block.sample * query_heads + head) * queries + index) * self.sizes.total() + key
    }

    /// Sums the weighted values.
    fn sum(&self, block: &Block, keys: &Range<usize>, room: &mut Room) {
        let size = self.sizes.value_size;
        room.sums[..block.count * size].fill(0.0);
        for key in keys.clone() {
            let column = key - keys.start;
            let weight = |at: usize| room.scores[at * keys.len() + column];
            if (0..block.count).all(|at| weight(at) == 0.0) {
                continue;
            }
            let row = T::widen(self.value.row(block.sample, block.head, key), &mut room.row[..size]);
            for at in 0..block.count {
                let weight = weight(at);
                if weight != 0.0 {
                    let sums = &mut room.sums[at * size..][..size];
                    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
                }
            }
        }
    }

    fn finish(&self, block: &Block, room: &Room, results: &mut Results<'_, T>) {
        let Sizes { query_heads, queries, value_size, is_rank_3, .. } = self.sizes;
        let strides = strides(query_heads, queries, value_size, is_rank_3);
        for at in 0..block.count {
            let (head, index) = block.query(at);
            let first = offset(strides, [block.sample, head, index]);
            let sums = &room.sums[at * value_size..][..value_size];
            for (element, sum) in results.output[first..first + value_size].iter_mut().zip(sums) {
                *element = T::of_f32(*sum);
            }
        }
    }
}

/// Returns the dot product of two slices of the same length.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (left, right) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(left, right)| left * right).sum();
    for (left, right) in left.zip(right) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += left * right;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Converts scores to weights. All weights are zero if all keys are masked.
fn softmax(scores: &mut [f32], in_f64: bool) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if most == f32::NEG_INFINITY && !scores.iter().any(|score| score.is_nan()) {
        scores.fill(0.0);
        return;
    }
    if in_f64 {
        let weight = |score: f32| (f64::from(score) - f64::from(most)).exp();
        let sum: f64 = scores.iter().map(|score| weight(*score)).sum();
        scores.iter_mut().for_each(|score| *score = (weight(*score) / sum) as f32);
        return;
    }
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = (*score - most).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|weight| *weight /= sum);
}

fn to_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
