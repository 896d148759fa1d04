//! Cases of ONNX `TensorScatter`.

use super::draft::{Draft, Theme, With, change_rank, unsupported};
use super::{Call, Element, Random};
use crate::onnx::TensorScatter;
use crate::{NegativeIndex, OutOfRange};

/// Themes that an ONNX model can express.
pub(super) const THEMES: &[Theme] = &[
    ("decode_ragged", |r, e| linear(r).one_row(r).draft(e)),
    ("prefill_without_indices", |r, e| linear(r).with(|write| write.write_indices = None).draft(e)),
    ("chunk", |r, e| linear(r).draft(e)),
    ("last_fit", |r, e| linear(r).with(|write| write.starts(|_, beyond| beyond - 1)).draft(e)),
    ("whole_cache", |r, e| {
        let mut write = linear(r);
        write.rows = write.cache_shape[write.axis];
        write.starts(|_, _| 0);
        write.draft(e)
    }),
    ("ring_wraps", |r, e| {
        let mut write = circular(r);
        write.rows = r.between(write.rows, write.cache_shape[write.axis]).max(2);
        write.cache_shape[write.axis] = write.cache_shape[write.axis].max(2);
        let (last, rows) = (write.capacity() - 1, write.rows);
        write.random_starts(r, |r| last - r.below(rows - 1) as i64);
        write.draft(e)
    }),
    ("ring_edge_indices", |r, e| {
        let mut write = circular(r);
        let (capacity, rows) = (write.capacity(), write.rows as i64);
        let in_or_near_the_ring = [-1, 0, capacity, capacity - 1, capacity + 1];
        let wrapping = [capacity - rows, capacity - rows - 1, capacity - rows + 1, -capacity];
        let edges = [&in_or_near_the_ring[..], &wrapping, &[i64::MIN, i64::MAX, i64::MAX - 1]].concat();
        write.random_starts(r, |r| r.pick(&edges));
        write.draft(e)
    }),
    ("ring_batch_over_capacity", |r, e| {
        let mut write = circular(r);
        write.cache_shape[write.axis] = r.between(1, 3);
        write.rows = 1;
        write.cache_shape[0] = write.cache_shape[write.axis] + r.between(1, 5);
        write.random_starts(r, |r| r.below(7) as i64);
        write.draft(e)
    }),
    ("ring_heads_over_capacity", |r, e| {
        let mut write = circular(r);
        let capacity = r.between(1, 3);
        write.cache_shape = vec![r.between(1, 2), capacity + r.between(1, 5), capacity, r.between(1, 3)];
        (write.axis, write.rows) = (2, 1);
        write.random_starts(r, |r| r.below(7) as i64);
        write.draft(e)
    }),
    ("ring_without_indices", |r, e| circular(r).with(|write| write.write_indices = None).draft(e)),
    ("no_rows", |r, e| {
        let mut write = linear(r);
        write.rows = 0;
        let capacity = write.capacity();
        write.random_starts(r, |r| r.pick(&[0, capacity]));
        write.draft(e)
    }),
    ("no_samples", |r, e| {
        let mut write = linear(r);
        write.cache_shape[0] = 0;
        write.write_indices = r.pick(&[None, Some(vec![])]);
        write.draft(e)
    }),
    ("empty_cache_in_a_ring", |r, e| {
        let mut write = circular(r);
        (write.cache_shape[write.axis], write.rows) = (0, 0);
        write.random_starts(r, |r| r.pick(&[0, 5, -5, i64::MIN, i64::MAX]));
        write.draft(e)
    }),
    ("empty_rows", |r, e| linear(r).with(|write| write.cache_shape.push(0)).draft(e)),
    ("odd_nibbles", |r, _| {
        let nibbles: Vec<_> = Element::all().iter().filter(|e| e.bits == Some(4)).collect();
        let e = r.pick(&nibbles);
        let mut write = circular(r);
        write.cache_shape = vec![r.between(1, 3), r.between(1, 3), r.between(2, 5), r.pick(&[1, 3, 5, 7])];
        (write.axis, write.rows) = (r.between(1, 3), 1);
        write.random_starts(r, |r| r.below(12) as i64 - 4);
        write.draft(e)
    }),
    ("refused_mode", |r, e| {
        let mut write = linear(r);
        write.operator.mode = r.pick(&["", "Linear", "CIRCULAR", "ring", "linear ", "circular\0"]).to_owned();
        write.draft(e)
    }),
    ("refused_rank", |r, e| {
        let write = linear(r).with(|write| write.cache_shape = r.pick(&[vec![], vec![4]]));
        let draft = write.draft_with_axis(e, r.pick(&[-2, -1, 0, 1]));
        draft.with(|draft| draft.update_shape.clone_from(&draft.cache_shape))
    }),
    ("refused_axis", |r, e| {
        let write = linear(r);
        let rank = write.cache_shape.len() as i64;
        write.draft_with_axis(e, r.pick(&[0, -rank, rank, -rank - 1, rank + 1, i64::MIN, i64::MAX]))
    }),
    ("refused_update_rank", |r, e| linear(r).draft(e).with(|draft| change_rank(r, &mut draft.update_shape))),
    ("refused_dimension", |r, e| {
        let write = linear(r);
        let others = (0..write.cache_shape.len()).filter(|&dimension| dimension != write.axis);
        let other = r.pick(&others.collect::<Vec<_>>());
        write.draft(e).with(|draft| {
            draft.update_shape[other] =
                r.pick(&[draft.update_shape[other] + 1, draft.update_shape[other] - 1]);
        })
    }),
    ("refused_long_update", |r, e| {
        let mut write = if r.below(2) == 0 { linear(r) } else { circular(r) };
        write.rows = write.cache_shape[write.axis] + r.between(1, 3);
        write.draft(e)
    }),
    ("refused_types_differ", |r, e| {
        linear(r).draft(e).with(|draft| draft.elements[1] = unsupported(r, &[e.name]))
    }),
    ("refused_index_count", |r, e| {
        let mut write = linear(r);
        let count = r.pick(&[write.batch() - 1, write.batch() + 1]);
        write.write_indices = Some(vec![0; count]);
        write.draft(e)
    }),
    ("refused_negative", |r, e| linear(r).or_no_rows(r).deviate(r, |_, _| vec![-1, i64::MIN]).draft(e)),
    ("refused_out_of_range", |r, e| {
        let starts = |_, beyond| vec![beyond, beyond + 1, i64::MAX, i64::MAX - 1, 1 << 32];
        linear(r).or_no_rows(r).deviate(r, starts).draft(e)
    }),
    ("refused_index_into_empty_cache", |r, e| {
        let mut write = linear(r);
        (write.cache_shape[write.axis], write.rows) = (0, 0);
        write.starts(|_, _| 0);
        write.deviate(r, |_, _| vec![1]).draft(e)
    }),
];

/// Themes that need kvscatter extensions.
pub(super) const EXTENDED_THEMES: &[Theme] = &[
    ("lengths", |r, e| linear(r).with_lengths(r).draft(e)),
    ("lengths_reach_the_end", |r, e| {
        let mut write = linear(r).with_lengths(r);
        let starts = |length: &i64| write.capacity() - length;
        write.write_indices = write.lengths.as_ref().map(|lengths| lengths.iter().map(starts).collect());
        write.draft(e)
    }),
    ("lengths_in_a_ring", |r, e| circular(r).with_lengths(r).draft(e)),
    ("skipped_samples", |r, e| {
        let mut write = linear(r);
        write.operator.out_of_range = OutOfRange::SkipSample;
        let capacity = write.capacity();
        let starts = [-1, 0, capacity - write.rows as i64 + 1, capacity, i64::MIN, i64::MAX];
        write.random_starts(r, |r| r.pick(&starts));
        if r.below(2) == 0 { write.with_lengths(r).draft(e) } else { write.draft(e) }
    }),
    ("ring_without_negatives", |r, e| {
        let mut write = rejecting(r);
        write.random_starts(r, |r| r.pick(&[0, 1, 9, i64::MAX]));
        write.draft(e)
    }),
    ("skipped_negatives_in_a_ring", |r, e| {
        rejecting(r).with(|write| write.operator.out_of_range = OutOfRange::SkipSample).draft(e)
    }),
    ("refused_negative_in_a_ring", |r, e| {
        rejecting(r).with(|write| write.starts(|_, _| 0)).deviate(r, |_, _| vec![-1, i64::MIN]).draft(e)
    }),
    ("refused_length", |r, e| {
        let mut write = linear(r).with_lengths(r);
        let wrong = r.pick(&[-1, write.rows as i64 + 1, i64::MIN, i64::MAX]);
        let sample = r.below(write.batch());
        write.lengths.iter_mut().for_each(|lengths| lengths[sample] = wrong);
        write.draft(e)
    }),
    ("refused_length_count", |r, e| {
        let mut write = linear(r);
        let count = r.pick(&[write.batch() - 1, write.batch() + 1]);
        write.lengths = Some(vec![0; count]);
        write.draft(e)
    }),
    ("refused_start_of_no_rows", |r, e| {
        let mut write = linear(r);
        write.lengths = Some(vec![0; write.batch()]);
        write.deviate(r, |capacity, _| vec![-1, capacity + 1]).draft(e)
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

/// Creates a call for a ring that rejects negative starts.
fn rejecting(r: &mut Random) -> Write {
    circular(r).with(|write| write.operator.negative_index = NegativeIndex::Reject)
}

impl Write {
    fn batch(&self) -> usize {
        self.cache_shape[0]
    }

    fn capacity(&self) -> i64 {
        self.cache_shape[self.axis] as i64
    }

    fn one_row(self, r: &mut Random) -> Self {
        self.with(|write| {
            write.rows = 1;
            let capacity = write.cache_shape[write.axis];
            write.random_starts(r, |r| r.below(capacity) as i64);
        })
    }

    fn or_no_rows(self, r: &mut Random) -> Self {
        self.with(|write| write.rows = r.pick(&[0, write.rows]))
    }

    fn with_lengths(mut self, r: &mut Random) -> Self {
        self.lengths = Some(r.many(self.batch(), |r| r.between(0, self.rows) as i64));
        self
    }

    /// Gives all samples one start, which may follow from the capacity and from the first start beyond the
    /// cache.
    fn starts(&mut self, start: impl FnOnce(i64, i64) -> i64) {
        let start = start(self.capacity(), self.capacity() - self.rows as i64 + 1);
        self.write_indices = Some(vec![start; self.batch()]);
    }

    fn random_starts(&mut self, r: &mut Random, start: impl FnMut(&mut Random) -> i64) {
        self.write_indices = Some(r.many(self.batch(), start));
    }

    /// Replaces the start of one random sample with one of these, which may follow from the same numbers.
    fn deviate(mut self, r: &mut Random, starts: impl FnOnce(i64, i64) -> Vec<i64>) -> Self {
        let starts = starts(self.capacity(), self.capacity() - self.rows as i64 + 1);
        let (sample, start) = (r.below(self.batch()), r.pick(&starts));
        self.write_indices.iter_mut().for_each(|indices| indices[sample] = start);
        self
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
