//! The sums: queries that share a head of keys go through it together, one key at a time.
//!
//! Everything is summed in float32. A block of queries is small enough for the first-level cache, so that each key and
//! value is read from memory once a block. A key that no query of the block sees is not read at all, nor is a value
//! whose weight is zero in all of them: what lies there, a NaN too, has no influence.

use std::ops::Range;

use super::float::Float;
use super::mask::Mask;
use super::operator::{Scores, Window};
use super::shapes::Sizes;

/// Queries of one block.
const BLOCK: usize = 16;

/// Partial sums of a dot product: enough for the widest registers.
const LANES: usize = 16;

/// A tensor of rows, `[batch, heads, length, size]` in this order or with heads after the length.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    values: &'a [T],
    size: usize,
    /// Elements from one index to the next: batch, heads, length.
    strides: [usize; 3],
}

impl<'a, T> Rows<'a, T> {
    /// `values` must fill the shape.
    pub(super) fn new(values: &'a [T], heads: usize, length: usize, size: usize, heads_inside: bool) -> Self {
        Self { values, size, strides: strides(heads, length, size, heads_inside) }
    }

    pub(super) fn row(&self, batch: usize, head: usize, index: usize) -> &'a [T] {
        let first = offset(self.strides, [batch, head, index]);
        &self.values[first..first + self.size]
    }
}

/// Elements from one index of batch, heads and length to the next.
fn strides(heads: usize, length: usize, size: usize, heads_inside: bool) -> [usize; 3] {
    let of_batch = heads * length * size;
    if heads_inside { [of_batch, size, heads * size] } else { [of_batch, length * size, size] }
}

fn offset(strides: [usize; 3], at: [usize; 3]) -> usize {
    strides.iter().zip(at).map(|(stride, index)| stride * index).sum()
}

/// One call.
pub(super) struct Call<'a, T> {
    pub sizes: Sizes,
    pub query: Rows<'a, T>,
    pub key: Rows<'a, T>,
    pub value: Rows<'a, T>,
    pub mask: Option<Mask<'a, T>>,
    /// `nonpad_kv_seqlen`: no more than the keys there are.
    pub lengths: Option<&'a [i64]>,
    pub scale: f32,
    pub softcap: f32,
    pub window: Window,
    pub softmax_in_f64: bool,
}

/// Where results go: both of the call's shapes.
pub(super) struct Results<'a, T> {
    pub output: &'a mut [T],
    pub scores: Option<(Scores, &'a mut [T])>,
}

/// Queries that go through their keys together: neighbours in `[queries, heads that share the head of keys]`.
#[derive(Clone, Copy)]
struct Block {
    sample: usize,
    /// Of the keys.
    head: usize,
    first: usize,
    count: usize,
    /// Query heads that share it.
    group: usize,
}

impl Block {
    /// The head and the index of a query.
    fn query(&self, at: usize) -> (usize, usize) {
        let at = self.first + at;
        (self.head * self.group + at % self.group, at / self.group)
    }
}

/// Memory of one block, used again by the next.
#[derive(Default)]
struct Room {
    /// `[BLOCK, head size]`, scaled.
    queries: Vec<f32>,
    /// `[BLOCK, keys]`: what is added to the scores, then the scores, then the weights.
    scores: Vec<f32>,
    /// `[BLOCK, value size]`.
    sums: Vec<f32>,
    /// One key or value.
    row: Vec<f32>,
}

impl<T: Float> Call<'_, T> {
    /// Computes all of it.
    pub(super) fn run(&self, results: &mut Results<'_, T>) {
        let Sizes { batch, heads, query_heads, queries, head_size, value_size, .. } = self.sizes;
        // Sizes of empty tensors are claims that no memory backs.
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

    /// The keys that the window and the length leave to a query.
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

    /// The keys that any query of a block may see: both ends move forward with the index.
    fn keys_of(&self, block: &Block) -> Range<usize> {
        let (_, first) = block.query(0);
        let (_, last) = block.query(block.count - 1);
        self.visible(block.sample, first).start..self.visible(block.sample, last).end
    }

    /// Scales the queries, and sets what is added to their scores.
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

    /// Adds the products of queries and keys.
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
                // A key that is not seen stays so for every score. Infinity plus its negative would be NaN.
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

    /// Where a score lies in `[batch, query heads, queries, keys]`.
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

/// Both are of one length.
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

/// Makes weights of scores: all zero where no key is seen.
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
