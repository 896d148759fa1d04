//! Cases of TensorRT `KVCacheUpdate`.

use super::draft::{Draft, Theme, With, change_rank, supported, unsupported};
use super::{Call, Element, Random};
use crate::OutOfRange;
use crate::tensorrt::{KvCacheUpdate, UpdateForm};

pub(super) const THEMES: &[Theme] = &[
    ("padded", |r, e| padded(r).draft(e)),
    ("decode", |r, e| padded(r).with(|write| write.rows.fill(1)).draft(e)),
    ("smaller_batch", |r, e| padded(r).with(|write| write.cache_shape[0] += r.between(1, 3)).draft(e)),
    ("no_rows", |r, e| padded(r).with(|write| write.rows.fill(0)).draft(e)),
    ("no_samples", |r, e| any(r).with(|write| (write.rows, write.write_indices) = (vec![], vec![])).draft(e)),
    ("packed", |r, e| packed(r).draft(e)),
    ("packed_smaller_batch", |r, e| packed(r).with(|write| write.cache_shape[0] += r.between(1, 3)).draft(e)),
    ("lengths", |r, e| {
        let mut write = any(r);
        write.lengths = Some(write.rows.iter().map(|&rows| r.between(0, rows) as i64).collect());
        write.draft(e)
    }),
    ("skipped_samples", |r, e| {
        let mut write = any(r);
        write.operator.out_of_range = OutOfRange::SkipSample;
        let starts = [-1, 0, 1, write.capacity(), write.capacity() + 1, i64::MAX];
        write.write_indices = r.many(write.rows.len(), |r| r.pick(&starts));
        write.draft(e)
    }),
    ("refused_type", |r, e| {
        padded(r).draft(e).with(|draft| draft.elements = [unsupported(r, &KvCacheUpdate::ELEMENT_TYPES); 2])
    }),
    ("refused_cache_rank", |r, e| padded(r).draft(e).with(|draft| change_rank(r, &mut draft.cache_shape))),
    ("refused_form", |r, e| {
        let mut write = any(r);
        let form = write.operator.update_form;
        write.operator.update_form = UpdateForm::Padded;
        write.draft(e).with(|draft| {
            if let Call::KvCacheUpdate { operator, .. } = &mut draft.call {
                operator.update_form = if form == UpdateForm::Padded { UpdateForm::Packed } else { form };
            }
        })
    }),
    ("refused_heads", |r, e| any(r).draft(e).with(|draft| draft.cache_shape[1] += 1)),
    ("refused_head_size", |r, e| any(r).draft(e).with(|draft| draft.cache_shape[3] += 1)),
    ("refused_larger_batch", |r, e| any(r).with(|write| write.cache_shape[0] -= 1).draft(e)),
    ("refused_long_update", |r, e| any(r).with(|write| write.rows.fill(write.cache_shape[2] + 1)).draft(e)),
    ("refused_index_count", |r, e| padded(r).with(|write| write.write_indices.pop()).draft(e)),
    ("refused_negative", |r, e| any(r).with(|write| write.deviate(r, |_| vec![-1, i64::MIN])).draft(e)),
    ("refused_out_of_range", |r, e| {
        any(r).with(|write| write.deviate(r, |beyond| vec![beyond, i64::MAX, 1 << 32])).draft(e)
    }),
    ("refused_without_update_lengths", |r, e| {
        packed(r).draft(e).with(|draft| *draft.update_lengths() = None)
    }),
    ("refused_with_update_lengths", |r, e| {
        padded(r).draft(e).with(|draft| *draft.update_lengths() = Some(vec![0, 1]))
    }),
    ("refused_update_lengths_count", |r, e| {
        packed(r).draft(e).with(|draft| draft.update_lengths().get_or_insert_default().push(0))
    }),
    ("refused_first_update_length", |r, e| {
        let first = r.pick(&[1, -1, i32::MIN, i32::MAX]);
        packed(r).draft(e).with(|draft| draft.update_lengths().get_or_insert_default()[0] = first)
    }),
    ("refused_decreasing_update_lengths", |r, e| {
        let value = r.pick(&[-1, i32::MIN]);
        packed(r).draft(e).with(|draft| draft.update_lengths().get_or_insert_default()[1] = value)
    }),
    ("refused_update_lengths_total", |r, e| packed(r).draft(e).with(|draft| draft.update_shape[0] += 1)),
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

fn any(r: &mut Random) -> Write {
    r.pick(&[padded, packed])(r)
}

impl Write {
    fn capacity(&self) -> i64 {
        self.cache_shape[2] as i64
    }

    /// Replaces the start of one sample with one of these, which follow from the first start beyond the cache.
    fn deviate(&mut self, r: &mut Random, starts: impl FnOnce(i64) -> Vec<i64>) {
        let sample = r.below(self.rows.len());
        let beyond = self.capacity() - self.rows[sample] as i64 + 1;
        self.write_indices[sample] = r.pick(&starts(beyond));
    }

    fn draft(self, element: &'static Element) -> Draft {
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
                (vec![tokens, heads, head_size], Some(update_lengths))
            }
        };
        Draft {
            call: Call::KvCacheUpdate {
                operator: self.operator,
                write_indices: self.write_indices,
                update_lengths,
                lengths: self.lengths,
            },
            elements: [supported(element, &KvCacheUpdate::ELEMENT_TYPES); 2],
            cache_shape: self.cache_shape.to_vec(),
            update_shape,
        }
    }
}

impl Draft {
    fn update_lengths(&mut self) -> &mut Option<Vec<i32>> {
        match &mut self.call {
            Call::KvCacheUpdate { update_lengths, .. } => update_lengths,
            call => unreachable!("{call:?}"),
        }
    }
}
