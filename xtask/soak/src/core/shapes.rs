//! Operators and shapes, which mostly fit each other.

use kvscatter_oracle::ascend::KvCacheOperation;
use kvscatter_oracle::cases::{Call, Random};
use kvscatter_oracle::onnx::TensorScatter;
use kvscatter_oracle::tensorrt::{KvCacheUpdate, UpdateForm};
use kvscatter_oracle::{NegativeIndex, OutOfRange};

/// A call without lists, and the shapes of its tensors.
pub(super) struct Shapes {
    pub(super) call: Call,
    pub(super) cache: Vec<usize>,
    pub(super) update: Vec<usize>,
    /// The rows of each sample of the update.
    pub(super) rows: Vec<usize>,
}

impl Shapes {
    pub(super) fn random(r: &mut Random, large: bool) -> Self {
        let mut shapes = match r.below(4) {
            0 => kv_cache_update(r, large),
            1 => kv_cache_operation(r, large),
            _ => tensor_scatter(r, large),
        };
        if r.below(24) == 0 {
            spoil(r, &mut shapes.update);
        }
        if r.below(24) == 0 {
            spoil(r, &mut shapes.cache);
        }
        shapes
    }

    /// Returns the number of slots. The shapes must fit the operator.
    pub(super) fn capacity(&self) -> usize {
        let [cache, _] = self.row_dimensions();
        cache.last().map_or(0, |&axis| self.cache[axis])
    }

    /// Returns the dimensions of the cache and of the update whose indices number the rows. The shapes must fit the
    /// operator.
    pub(super) fn row_dimensions(&self) -> [Vec<usize>; 2] {
        match &self.call {
            Call::TensorScatter { operator, .. } => {
                let back = if operator.axis < 0 { self.cache.len() as i64 } else { 0 };
                let axis = (operator.axis + back) as usize;
                [vec![0, axis], vec![0, axis]]
            }
            Call::KvCacheUpdate { operator, .. } => match operator.update_form {
                UpdateForm::Padded => [vec![0, 2], vec![0, 2]],
                UpdateForm::Packed => [vec![0, 2], vec![0]],
            },
            Call::KvCacheOperation { .. } => {
                [vec![0, 1, 2], if self.update.len() == 2 { vec![0] } else { vec![0, 1] }]
            }
        }
    }
}

fn tensor_scatter(r: &mut Random, large: bool) -> Shapes {
    let rank = r.between(2, 5);
    let axis = r.between(1, rank - 1);
    let mut cache = r.many(rank, |r| r.pick(&[1, 1, 2, 2, 3, 4]));
    cache[0] = batch(r);
    cache[axis] = capacity(r, large);
    if axis != rank - 1 {
        cache[rank - 1] = width(r, large);
    }
    if r.below(32) == 0 {
        cache[rank - 1] = 0;
    }
    let (batch, capacity) = (cache[0], cache[axis]);
    let rows = rows(r, capacity);
    let mut update = cache.clone();
    update[axis] = rows;
    let operator = TensorScatter {
        axis: match r.below(16) {
            0 => r.pick(&[0, rank as i64, -(rank as i64), i64::MIN, i64::MAX]),
            n if n % 2 == 0 => axis as i64,
            _ => axis as i64 - rank as i64,
        },
        mode: if r.below(2) == 0 { "circular" } else { "linear" }.to_owned(),
        out_of_range: out_of_range(r),
        negative_index: r.pick(&[NegativeIndex::Modulo, NegativeIndex::Reject]),
    };
    Shapes {
        call: Call::TensorScatter { operator, write_indices: None, lengths: None },
        cache,
        update,
        rows: vec![rows; batch],
    }
}

fn kv_cache_update(r: &mut Random, large: bool) -> Shapes {
    let cache = vec![batch(r), r.between(1, 3), capacity(r, large), width(r, large)];
    let capacity = cache[2];
    let samples = if r.below(3) == 0 { r.below(cache[0] + 1) } else { cache[0] };
    let is_packed = r.below(2) == 0;
    let (rows, update) = if is_packed {
        let rows = r.many(samples, |r| rows(r, capacity));
        (rows.clone(), vec![rows.iter().sum(), cache[1], cache[3]])
    } else {
        let rows = rows(r, capacity);
        (vec![rows; samples], vec![samples, cache[1], rows, cache[3]])
    };
    let update_form = if is_packed { UpdateForm::Packed } else { UpdateForm::Padded };
    let operator = KvCacheUpdate { update_form, out_of_range: out_of_range(r) };
    let update_lengths = is_packed.then(Vec::new);
    Shapes {
        call: Call::KvCacheUpdate { operator, write_indices: Vec::new(), update_lengths, lengths: None },
        cache,
        update,
        rows,
    }
}

fn kv_cache_operation(r: &mut Random, large: bool) -> Shapes {
    let (layers, samples, capacity) = (r.between(1, 3), batch(r), capacity(r, large).max(1));
    let (heads, head_size) = (r.between(1, 3), width(r, large));
    let (rows, update) = if r.below(2) == 0 {
        let rows = r.many(samples, |r| r.between(1, capacity));
        (rows.clone(), vec![rows.iter().sum(), heads * head_size])
    } else {
        let rows = r.between(1, capacity);
        (vec![rows; samples], vec![samples, rows, heads, head_size])
    };
    Shapes {
        call: Call::KvCacheOperation {
            operator: KvCacheOperation { out_of_range: out_of_range(r) },
            layer_id: Vec::new(),
            token_offset: Vec::new(),
            seq_len: Vec::new(),
            lengths: None,
        },
        cache: vec![layers, samples, capacity, heads * head_size],
        update,
        rows,
    }
}

fn batch(r: &mut Random) -> usize {
    if r.below(2) == 0 { r.between(1, 3) } else { r.below(10) }
}

fn capacity(r: &mut Random, large: bool) -> usize {
    if large { r.between(1, 40) } else { r.below(10) }
}

/// Returns a number of elements that lie next to each other in a dense tensor.
fn width(r: &mut Random, large: bool) -> usize {
    if large { r.between(1, 70) } else { r.pick(&[1, 1, 2, 3, 4, 5]) }
}

fn rows(r: &mut Random, capacity: usize) -> usize {
    if r.below(3) == 0 { capacity.min(1) } else { r.below(capacity + 1) }
}

fn out_of_range(r: &mut Random) -> OutOfRange {
    r.pick(&[OutOfRange::Error, OutOfRange::SkipSample])
}

/// Adds a dimension, removes one, or changes its size.
fn spoil(r: &mut Random, shape: &mut Vec<usize>) {
    match r.below(4) {
        0 => shape.push(r.below(3)),
        1 => drop(shape.pop()),
        _ => {
            let spoiled = r.below(shape.len());
            shape[spoiled] = r.below(6);
        }
    }
}
