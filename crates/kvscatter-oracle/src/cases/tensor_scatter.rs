//! Cases of ONNX `TensorScatter`.

use super::draft::{Draft, Theme};
use super::{Call, Element, Random};
use crate::onnx::TensorScatter;
use crate::{NegativeIndex, OutOfRange};

/// Themes that an ONNX model can express.
pub(super) const THEMES: &[Theme] = &[
    ("tensor_scatter_decode_ragged", |r, e| linear(r).one_row(r).draft(e)),
    ("tensor_scatter_prefill_without_indices", |r, e| linear(r).without_indices().draft(e)),
    ("tensor_scatter_chunk", |r, e| linear(r).draft(e)),
    ("tensor_scatter_last_fit", |r, e| {
        let mut write = linear(r);
        let last = write.capacity() - write.rows as i64;
        write.write_indices = Some(vec![last; write.batch()]);
        write.draft(e)
    }),
    ("tensor_scatter_whole_cache", |r, e| {
        let mut write = linear(r);
        write.rows = write.cache_shape[write.axis];
        write.write_indices = Some(vec![0; write.batch()]);
        write.draft(e)
    }),
    ("tensor_scatter_ring_wraps", |r, e| {
        let mut write = circular(r);
        write.rows = r.between(write.rows, write.cache_shape[write.axis]).max(2);
        write.cache_shape[write.axis] = write.cache_shape[write.axis].max(2);
        let (capacity, rows) = (write.capacity(), write.rows as i64);
        write.write_indices =
            Some(r.many(write.batch(), |r| capacity - 1 - r.below(rows as usize - 1) as i64));
        write.draft(e)
    }),
    ("tensor_scatter_ring_edge_indices", |r, e| {
        let mut write = circular(r);
        let (capacity, rows) = (write.capacity(), write.rows as i64);
        let edges = [
            -1,
            0,
            capacity,
            capacity - 1,
            capacity + 1,
            capacity - rows,
            capacity - rows - 1,
            capacity - rows + 1,
            -capacity,
            i64::MIN,
            i64::MAX,
            i64::MAX - 1,
        ];
        write.write_indices = Some(r.many(write.batch(), |r| r.pick(&edges)));
        write.draft(e)
    }),
    ("tensor_scatter_ring_batch_over_capacity", |r, e| {
        let mut write = circular(r);
        write.cache_shape[write.axis] = r.between(1, 3);
        write.rows = 1;
        write.cache_shape[0] = write.cache_shape[write.axis] + r.between(1, 5);
        write.write_indices = Some(r.many(write.batch(), |r| r.below(7) as i64));
        write.draft(e)
    }),
    ("tensor_scatter_ring_heads_over_capacity", |r, e| {
        let mut write = circular(r);
        let capacity = r.between(1, 3);
        write.cache_shape = vec![r.between(1, 2), capacity + r.between(1, 5), capacity, r.between(1, 3)];
        (write.axis, write.rows) = (2, 1);
        write.write_indices = Some(r.many(write.batch(), |r| r.below(7) as i64));
        write.draft(e)
    }),
    ("tensor_scatter_ring_without_indices", |r, e| circular(r).without_indices().draft(e)),
    ("tensor_scatter_no_rows", |r, e| {
        let mut write = linear(r);
        write.rows = 0;
        let capacity = write.capacity();
        write.write_indices = Some(r.many(write.batch(), |r| r.pick(&[0, capacity])));
        write.draft(e)
    }),
    ("tensor_scatter_no_samples", |r, e| {
        let mut write = linear(r);
        write.cache_shape[0] = 0;
        write.write_indices = r.pick(&[None, Some(vec![])]);
        write.draft(e)
    }),
    ("tensor_scatter_empty_cache_in_a_ring", |r, e| {
        let mut write = circular(r);
        (write.cache_shape[write.axis], write.rows) = (0, 0);
        write.write_indices = Some(r.many(write.batch(), |r| r.pick(&[0, 5, -5, i64::MIN, i64::MAX])));
        write.draft(e)
    }),
    ("tensor_scatter_empty_rows", |r, e| {
        let mut write = linear(r);
        write.cache_shape.push(0);
        write.draft(e)
    }),
    ("tensor_scatter_odd_nibbles", |r, _| {
        let nibbles: Vec<_> = Element::all().iter().filter(|e| e.bits == Some(4)).collect();
        let e = r.pick(&nibbles);
        let mut write = circular(r);
        write.cache_shape = vec![r.between(1, 3), r.between(1, 3), r.between(2, 5), r.pick(&[1, 3, 5, 7])];
        (write.axis, write.rows) = (r.between(1, 3), 1);
        write.write_indices = Some(r.many(write.batch(), |r| r.below(12) as i64 - 4));
        write.draft(e)
    }),
    ("tensor_scatter_refused_mode", |r, e| {
        let mut write = linear(r);
        write.operator.mode = r.pick(&["", "Linear", "CIRCULAR", "ring", "linear ", "circular\0"]).to_owned();
        write.draft(e)
    }),
    ("tensor_scatter_refused_rank", |r, e| {
        let mut write = linear(r);
        write.cache_shape = r.pick(&[vec![], vec![4]]);
        let mut draft = write.draft_with_axis(e, r.pick(&[-2, -1, 0, 1]));
        draft.update_shape.clone_from(&draft.cache_shape);
        draft
    }),
    ("tensor_scatter_refused_axis", |r, e| {
        let write = linear(r);
        let rank = write.cache_shape.len() as i64;
        write.draft_with_axis(e, r.pick(&[0, -rank, rank, -rank - 1, rank + 1, i64::MIN, i64::MAX]))
    }),
    ("tensor_scatter_refused_update_rank", |r, e| {
        let mut draft = linear(r).draft(e);
        if r.below(2) == 0 {
            draft.update_shape.push(1);
        } else {
            draft.update_shape.pop();
        }
        draft
    }),
    ("tensor_scatter_refused_dimension", |r, e| {
        let write = linear(r);
        let other =
            (0..write.cache_shape.len()).filter(|&dimension| dimension != write.axis).collect::<Vec<_>>();
        let other = r.pick(&other);
        let mut draft = write.draft(e);
        draft.update_shape[other] = r.pick(&[draft.update_shape[other] + 1, draft.update_shape[other] - 1]);
        draft
    }),
    ("tensor_scatter_refused_long_update", |r, e| {
        let mut write = if r.below(2) == 0 { linear(r) } else { circular(r) };
        write.rows = write.cache_shape[write.axis] + r.between(1, 3);
        write.draft(e)
    }),
    ("tensor_scatter_refused_types_differ", |r, e| {
        let mut draft = linear(r).draft(e);
        let others: Vec<_> = Element::all().iter().filter(|other| *other != e).collect();
        draft.elements[1] = r.pick(&others);
        draft
    }),
    ("tensor_scatter_refused_index_count", |r, e| {
        let mut write = linear(r);
        let count = r.pick(&[write.batch() - 1, write.batch() + 1]);
        write.write_indices = Some(vec![0; count]);
        write.draft(e)
    }),
    ("tensor_scatter_refused_negative", |r, e| {
        let mut write = linear(r);
        write.rows = r.pick(&[0, write.rows]);
        write.deviate(r, &[-1, i64::MIN]);
        write.draft(e)
    }),
    ("tensor_scatter_refused_out_of_range", |r, e| {
        let mut write = linear(r);
        write.rows = r.pick(&[0, write.rows]);
        let beyond = write.capacity() - write.rows as i64 + 1;
        write.deviate(r, &[beyond, beyond + 1, i64::MAX, i64::MAX - 1, 1 << 32]);
        write.draft(e)
    }),
    ("tensor_scatter_refused_index_into_empty_cache", |r, e| {
        let mut write = linear(r);
        (write.cache_shape[write.axis], write.rows) = (0, 0);
        write.write_indices = Some(vec![0; write.batch()]);
        write.deviate(r, &[1]);
        write.draft(e)
    }),
];

/// Themes that need kvscatter extensions.
pub(super) const EXTENDED_THEMES: &[Theme] = &[
    ("tensor_scatter_lengths", |r, e| linear(r).with_lengths(r).draft(e)),
    ("tensor_scatter_lengths_reach_the_end", |r, e| {
        let mut write = linear(r).with_lengths(r);
        let capacity = write.capacity();
        write.write_indices =
            write.lengths.as_ref().map(|l| l.iter().map(|length| capacity - length).collect());
        write.draft(e)
    }),
    ("tensor_scatter_lengths_in_a_ring", |r, e| circular(r).with_lengths(r).draft(e)),
    ("tensor_scatter_skipped_samples", |r, e| {
        let mut write = linear(r);
        write.operator.out_of_range = OutOfRange::SkipSample;
        let capacity = write.capacity();
        let starts = [-1, 0, capacity - write.rows as i64 + 1, capacity, i64::MIN, i64::MAX];
        write.write_indices = Some(r.many(write.batch(), |r| r.pick(&starts)));
        if r.below(2) == 0 { write.with_lengths(r).draft(e) } else { write.draft(e) }
    }),
    ("tensor_scatter_ring_without_negatives", |r, e| {
        let mut write = circular(r);
        write.operator.negative_index = NegativeIndex::Reject;
        write.write_indices = Some(r.many(write.batch(), |r| r.pick(&[0, 1, 9, i64::MAX])));
        write.draft(e)
    }),
    ("tensor_scatter_skipped_negatives_in_a_ring", |r, e| {
        let mut write = circular(r);
        write.operator.negative_index = NegativeIndex::Reject;
        write.operator.out_of_range = OutOfRange::SkipSample;
        write.draft(e)
    }),
    ("tensor_scatter_refused_negative_in_a_ring", |r, e| {
        let mut write = circular(r);
        write.operator.negative_index = NegativeIndex::Reject;
        write.write_indices = Some(vec![0; write.batch()]);
        write.deviate(r, &[-1, i64::MIN]);
        write.draft(e)
    }),
    ("tensor_scatter_refused_length", |r, e| {
        let mut write = linear(r).with_lengths(r);
        let wrong = r.pick(&[-1, write.rows as i64 + 1, i64::MIN, i64::MAX]);
        let sample = r.below(write.batch());
        write.lengths.iter_mut().for_each(|lengths| lengths[sample] = wrong);
        write.draft(e)
    }),
    ("tensor_scatter_refused_length_count", |r, e| {
        let mut write = linear(r);
        let count = r.pick(&[write.batch() - 1, write.batch() + 1]);
        write.lengths = Some(vec![0; count]);
        write.draft(e)
    }),
    ("tensor_scatter_refused_start_of_no_rows", |r, e| {
        let mut write = linear(r);
        write.lengths = Some(vec![0; write.batch()]);
        let capacity = write.capacity();
        write.deviate(r, &[-1, capacity + 1]);
        write.draft(e)
    }),
];

/// A `TensorScatter` call under construction. It begins valid, and themes break it.
struct Write {
    operator: TensorScatter,
    axis: usize,
    negative_axis: bool,
    cache_shape: Vec<usize>,
    rows: usize,
    write_indices: Option<Vec<i64>>,
    lengths: Option<Vec<i64>>,
}

/// Creates a call with any rank from 2 to 5 and any axis. Every dimension is at least 1, and every start is
/// valid.
fn linear(r: &mut Random) -> Write {
    let rank = r.between(2, 5);
    let mut cache_shape = r.many(rank, |r| r.between(1, 4));
    let axis = r.between(1, rank - 1);
    cache_shape[axis] = r.between(1, 9);
    let rows = r.between(1, cache_shape[axis]);
    let write_indices = r.many(cache_shape[0], |r| r.between(0, cache_shape[axis] - rows) as i64);
    Write {
        operator: TensorScatter::default(),
        axis,
        negative_axis: r.below(2) == 0,
        cache_shape,
        rows,
        write_indices: Some(write_indices),
        lengths: None,
    }
}

/// Creates the same call for a ring, with starts inside, below and above it.
fn circular(r: &mut Random) -> Write {
    let mut write = linear(r);
    write.operator.mode = "circular".to_owned();
    write.write_indices = Some(r.many(write.batch(), |r| r.below(30) as i64 - 15));
    write
}

impl Write {
    fn batch(&self) -> usize {
        self.cache_shape[0]
    }

    fn capacity(&self) -> i64 {
        self.cache_shape[self.axis] as i64
    }

    fn one_row(mut self, r: &mut Random) -> Self {
        self.rows = 1;
        self.write_indices = Some(r.many(self.batch(), |r| r.below(self.cache_shape[self.axis]) as i64));
        self
    }

    fn without_indices(mut self) -> Self {
        self.write_indices = None;
        self
    }

    fn with_lengths(mut self, r: &mut Random) -> Self {
        self.lengths = Some(r.many(self.batch(), |r| r.between(0, self.rows) as i64));
        self
    }

    /// Replaces the start of one random sample with one of these starts.
    fn deviate(&mut self, r: &mut Random, starts: &[i64]) {
        let (sample, start) = (r.below(self.batch()), r.pick(starts));
        self.write_indices.iter_mut().for_each(|indices| indices[sample] = start);
    }

    fn draft(self, element: &'static Element) -> Draft {
        let from_the_back = if self.negative_axis { self.cache_shape.len() } else { 0 };
        let axis = self.axis as i64 - from_the_back as i64;
        self.draft_with_axis(element, axis)
    }

    fn draft_with_axis(mut self, element: &'static Element, axis: i64) -> Draft {
        self.operator.axis = axis;
        let mut update_shape = self.cache_shape.clone();
        update_shape.iter_mut().skip(self.axis).take(1).for_each(|rows| *rows = self.rows);
        Draft {
            call: Call::TensorScatter {
                operator: self.operator,
                write_indices: self.write_indices,
                lengths: self.lengths,
            },
            elements: [element; 2],
            cache_shape: self.cache_shape,
            update_shape,
        }
    }
}
