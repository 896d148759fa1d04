//! Cases of TensorRT `KVCacheUpdate`.

use super::draft::{Draft, Theme};
use super::{Call, Element, Random};
use crate::OutOfRange;
use crate::tensorrt::{KvCacheUpdate, UpdateForm};

pub(super) const THEMES: &[Theme] = &[
    ("kv_cache_update_padded", |r, e| padded(r).draft(e)),
    ("kv_cache_update_decode", |r, e| {
        let mut write = padded(r);
        write.rows = vec![1; write.rows.len()];
        write.draft(e)
    }),
    ("kv_cache_update_smaller_batch", |r, e| {
        let mut write = padded(r);
        write.cache_shape[0] += r.between(1, 3);
        write.draft(e)
    }),
    ("kv_cache_update_no_rows", |r, e| {
        let mut write = padded(r);
        write.rows = vec![0; write.rows.len()];
        write.draft(e)
    }),
    ("kv_cache_update_no_samples", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        (write.rows, write.write_indices) = (vec![], vec![]);
        write.draft(e)
    }),
    ("kv_cache_update_packed", |r, e| packed(r).draft(e)),
    ("kv_cache_update_packed_smaller_batch", |r, e| {
        let mut write = packed(r);
        write.cache_shape[0] += r.between(1, 3);
        write.draft(e)
    }),
    ("kv_cache_update_lengths", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        write.lengths = Some(write.rows.clone().into_iter().map(|rows| r.between(0, rows) as i64).collect());
        write.draft(e)
    }),
    ("kv_cache_update_skipped_samples", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        write.operator.out_of_range = OutOfRange::SkipSample;
        let capacity = write.capacity();
        write.write_indices =
            r.many(write.rows.len(), |r| r.pick(&[-1, 0, 1, capacity, capacity + 1, i64::MAX]));
        write.draft(e)
    }),
    ("kv_cache_update_refused_type", |r, _| {
        let refused: Vec<_> =
            Element::all().iter().filter(|e| !KvCacheUpdate::ELEMENT_TYPES.contains(&e.name)).collect();
        let mut draft = padded(r).draft(&Element::all()[0]);
        draft.elements = [r.pick(&refused); 2];
        draft
    }),
    ("kv_cache_update_refused_cache_rank", |r, e| {
        let mut draft = padded(r).draft(e);
        if r.below(2) == 0 {
            draft.cache_shape.push(1);
        } else {
            draft.cache_shape.pop();
        }
        draft
    }),
    ("kv_cache_update_refused_form", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        let form = write.operator.update_form;
        write.operator.update_form = UpdateForm::Padded;
        let mut draft = write.draft(e);
        if let Call::KvCacheUpdate { operator, .. } = &mut draft.call {
            operator.update_form = if form == UpdateForm::Padded { UpdateForm::Packed } else { form };
        }
        draft
    }),
    ("kv_cache_update_refused_heads", |r, e| {
        let mut draft = r.pick(&[padded, packed])(r).draft(e);
        draft.cache_shape[1] += 1;
        draft
    }),
    ("kv_cache_update_refused_head_size", |r, e| {
        let mut draft = r.pick(&[padded, packed])(r).draft(e);
        draft.cache_shape[3] += 1;
        draft
    }),
    ("kv_cache_update_refused_larger_batch", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        write.cache_shape[0] -= 1;
        write.draft(e)
    }),
    ("kv_cache_update_refused_long_update", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        write.rows = vec![write.cache_shape[2] + 1; write.rows.len()];
        write.draft(e)
    }),
    ("kv_cache_update_refused_index_count", |r, e| {
        let mut write = padded(r);
        write.write_indices.pop();
        write.draft(e)
    }),
    ("kv_cache_update_refused_negative", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        let sample = r.below(write.rows.len());
        write.write_indices[sample] = r.pick(&[-1, i64::MIN]);
        write.draft(e)
    }),
    ("kv_cache_update_refused_out_of_range", |r, e| {
        let mut write = r.pick(&[padded, packed])(r);
        let sample = r.below(write.rows.len());
        let beyond = write.capacity() - write.rows[sample] as i64 + 1;
        write.write_indices[sample] = r.pick(&[beyond, i64::MAX, 1 << 32]);
        write.draft(e)
    }),
    ("kv_cache_update_refused_without_update_lengths", |r, e| {
        let mut draft = packed(r).draft(e);
        if let Call::KvCacheUpdate { update_lengths, .. } = &mut draft.call {
            *update_lengths = None;
        }
        draft
    }),
    ("kv_cache_update_refused_with_update_lengths", |r, e| {
        let mut draft = padded(r).draft(e);
        if let Call::KvCacheUpdate { update_lengths, .. } = &mut draft.call {
            *update_lengths = Some(vec![0, 1]);
        }
        draft
    }),
    ("kv_cache_update_refused_update_lengths_count", |r, e| {
        packed(r).draft_with_update_lengths(e, |update_lengths| update_lengths.push(0))
    }),
    ("kv_cache_update_refused_first_update_length", |r, e| {
        let first = r.pick(&[1, -1, i32::MIN, i32::MAX]);
        packed(r).draft_with_update_lengths(e, |update_lengths| update_lengths[0] = first)
    }),
    ("kv_cache_update_refused_decreasing_update_lengths", |r, e| {
        let value = r.pick(&[-1, i32::MIN]);
        packed(r).draft_with_update_lengths(e, |update_lengths| update_lengths[1] = value)
    }),
    ("kv_cache_update_refused_update_lengths_total", |r, e| {
        let mut draft = packed(r).draft(e);
        draft.update_shape[0] += 1;
        draft
    }),
];

/// A `KVCacheUpdate` call under construction. It begins valid, and themes break it.
struct Write {
    operator: KvCacheUpdate,
    cache_shape: [usize; 4],
    /// The number of rows of each sample of the update.
    rows: Vec<usize>,
    write_indices: Vec<i64>,
    lengths: Option<Vec<i64>>,
}

fn padded(r: &mut Random) -> Write {
    let cache_shape = [r.between(1, 4), r.between(1, 3), r.between(1, 8), r.between(1, 5)];
    let rows = vec![r.between(1, cache_shape[2]); cache_shape[0]];
    let write_indices = rows.iter().map(|&rows| r.between(0, cache_shape[2] - rows) as i64).collect();
    Write { operator: KvCacheUpdate::default(), cache_shape, rows, write_indices, lengths: None }
}

/// Creates a packed call. At least one sample has rows, and the others may have 0 rows.
fn packed(r: &mut Random) -> Write {
    let mut write = padded(r);
    write.operator.update_form = UpdateForm::Packed;
    for (rows, start) in write.rows.iter_mut().zip(&mut write.write_indices).skip(1) {
        *rows = r.between(0, write.cache_shape[2]);
        *start = r.between(0, write.cache_shape[2] - *rows) as i64;
    }
    write
}

impl Write {
    fn capacity(&self) -> i64 {
        self.cache_shape[2] as i64
    }

    fn draft(self, element: &'static Element) -> Draft {
        self.draft_with_update_lengths(element, |_| ())
    }

    /// Creates a draft after `spoil` has changed `updateLengths`, if the update is packed.
    fn draft_with_update_lengths(
        self,
        element: &'static Element,
        spoil: impl FnOnce(&mut Vec<i32>),
    ) -> Draft {
        let [_, heads, _, head_size] = self.cache_shape;
        let (update_shape, update_lengths) = match self.operator.update_form {
            UpdateForm::Padded => {
                let rows = self.rows.first().copied().unwrap_or(1);
                (vec![self.rows.len(), heads, rows, head_size], None)
            }
            UpdateForm::Packed => {
                let tokens = self.rows.iter().sum();
                let mut update_lengths = vec![0];
                for &rows in &self.rows {
                    update_lengths.push(update_lengths[update_lengths.len() - 1] + rows as i32);
                }
                spoil(&mut update_lengths);
                (vec![tokens, heads, head_size], Some(update_lengths))
            }
        };
        let supported = Element::among(&KvCacheUpdate::ELEMENT_TYPES);
        Draft {
            call: Call::KvCacheUpdate {
                operator: self.operator,
                write_indices: self.write_indices,
                update_lengths,
                lengths: self.lengths,
            },
            // The generator passes every type. A type that the operator does not support is replaced.
            elements: [supported[element.name.len() % supported.len()]; 2],
            cache_shape: self.cache_shape.to_vec(),
            update_shape,
        }
    }
}
