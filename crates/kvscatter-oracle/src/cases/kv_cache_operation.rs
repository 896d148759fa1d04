//! Cases of Ascend ATB `KVCacheOperation`.

use super::draft::{Draft, Theme};
use super::{Call, Element, Random};
use crate::OutOfRange;
use crate::ascend::KvCacheOperation;

pub(super) const THEMES: &[Theme] = &[
    ("kv_cache_operation_ragged", |r, e| write(r).draft(e)),
    ("kv_cache_operation_decode", |r, e| {
        let mut write = write(r);
        write.seq_len = vec![1; write.seq_len.len()];
        write.draft(e)
    }),
    ("kv_cache_operation_fills_the_last_slot", |r, e| {
        let mut write = write(r);
        write.token_offset = vec![write.past_shape[2] as i32; write.seq_len.len()];
        write.draft(e)
    }),
    ("kv_cache_operation_no_samples", |r, e| {
        let mut write = write(r);
        write.past_shape[1] = 0;
        (write.seq_len, write.token_offset) = (vec![], vec![]);
        write.draft(e)
    }),
    ("kv_cache_operation_four_dimensions", |r, e| write(r).four_dimensions(r).draft(e)),
    ("kv_cache_operation_lengths", |r, e| {
        let mut write = if r.below(2) == 0 { write(r) } else { write(r).four_dimensions(r) };
        write.lengths = Some(write.seq_len.iter().map(|&rows| r.between(0, rows as usize) as i64).collect());
        write.draft(e)
    }),
    ("kv_cache_operation_skipped_samples", |r, e| {
        let mut write = write(r);
        write.operator.out_of_range = OutOfRange::SkipSample;
        let end = write.past_shape[2] as i32;
        write.token_offset =
            r.many(write.seq_len.len(), |r| r.pick(&[-1, 0, end, end + 1, i32::MIN, i32::MAX]));
        write.draft(e)
    }),
    ("kv_cache_operation_refused_type", |r, _| {
        let refused: Vec<_> =
            Element::all().iter().filter(|e| !KvCacheOperation::ELEMENT_TYPES.contains(&e.name)).collect();
        let mut draft = write(r).draft(&Element::all()[0]);
        draft.elements = [r.pick(&refused); 2];
        draft
    }),
    ("kv_cache_operation_refused_past_rank", |r, e| {
        let mut draft = write(r).draft(e);
        draft.cache_shape.pop();
        draft
    }),
    ("kv_cache_operation_refused_new_kv_rank", |r, e| {
        let mut draft = write(r).draft(e);
        draft.update_shape.insert(0, 1);
        draft
    }),
    ("kv_cache_operation_refused_hidden_size", |r, e| {
        let mut draft = if r.below(2) == 0 { write(r) } else { write(r).four_dimensions(r) }.draft(e);
        draft.cache_shape[3] += 1;
        draft
    }),
    ("kv_cache_operation_refused_new_kv_batch", |r, e| {
        let mut draft = write(r).four_dimensions(r).draft(e);
        draft.update_shape[0] += 1;
        draft
    }),
    ("kv_cache_operation_refused_layer_ids", |r, e| {
        let mut write = write(r);
        write.layer_id = r.pick(&[vec![], vec![0, 0]]);
        write.draft(e)
    }),
    ("kv_cache_operation_refused_token_offset_count", |r, e| {
        let mut write = write(r);
        write.token_offset.push(1);
        write.draft(e)
    }),
    ("kv_cache_operation_refused_seq_len_count", |r, e| {
        let mut draft = write(r).draft(e);
        if let Call::KvCacheOperation { seq_len, .. } = &mut draft.call {
            seq_len.pop();
        }
        draft
    }),
    ("kv_cache_operation_refused_layer", |r, e| {
        let mut write = write(r);
        write.layer_id = vec![r.pick(&[-1, write.past_shape[0] as i32, i32::MIN, i32::MAX])];
        write.draft(e)
    }),
    ("kv_cache_operation_refused_seq_len", |r, e| {
        let mut draft = write(r).draft(e);
        if let Call::KvCacheOperation { seq_len, .. } = &mut draft.call {
            let sample = r.below(seq_len.len());
            seq_len[sample] = r.pick(&[0, -1, i32::MIN, i32::MAX]);
        }
        draft
    }),
    ("kv_cache_operation_refused_unequal_seq_len", |r, e| {
        let mut write = write(r).four_dimensions(r);
        write.past_shape[2] += 1;
        let mut draft = write.draft(e);
        if let Call::KvCacheOperation { seq_len, .. } = &mut draft.call {
            seq_len[0] += 1;
        }
        draft
    }),
    ("kv_cache_operation_refused_seq_len_total", |r, e| {
        let mut draft = write(r).draft(e);
        draft.update_shape[0] = r.pick(&[draft.update_shape[0] + 1, draft.update_shape[0] - 1]);
        draft
    }),
    ("kv_cache_operation_refused_token_offset_below_seq_len", |r, e| {
        let mut write = write(r);
        let sample = r.below(write.seq_len.len());
        write.token_offset[sample] = r.pick(&[write.seq_len[sample] - 1, 0, -1, i32::MIN]);
        write.draft(e)
    }),
    ("kv_cache_operation_refused_token_offset_beyond_the_cache", |r, e| {
        let mut write = write(r);
        let sample = r.below(write.seq_len.len());
        write.token_offset[sample] = r.pick(&[write.past_shape[2] as i32 + 1, i32::MAX]);
        write.draft(e)
    }),
];

/// A `KVCacheOperation` call under construction. It begins valid, and themes break it.
struct Write {
    operator: KvCacheOperation,
    layer_id: Vec<i32>,
    past_shape: [usize; 4],
    token_offset: Vec<i32>,
    seq_len: Vec<i32>,
    /// The number of heads, for a 4-D update. All samples of such an update have the same number of rows.
    head_num: Option<usize>,
    lengths: Option<Vec<i64>>,
}

fn write(r: &mut Random) -> Write {
    let past_shape = [r.between(1, 3), r.between(1, 5), r.between(1, 8), r.between(1, 6)];
    let seq_len: Vec<_> = r.many(past_shape[1], |r| r.between(1, past_shape[2]) as i32);
    let token_offset = seq_len.iter().map(|&rows| r.between(rows as usize, past_shape[2]) as i32).collect();
    Write {
        operator: KvCacheOperation::default(),
        layer_id: vec![r.below(past_shape[0]) as i32],
        past_shape,
        token_offset,
        seq_len,
        head_num: None,
        lengths: None,
    }
}

impl Write {
    fn four_dimensions(mut self, r: &mut Random) -> Self {
        let (heads, head_size) = (r.between(1, 3), r.between(1, 3));
        self.head_num = Some(heads);
        self.past_shape[3] = heads * head_size;
        self.seq_len = vec![self.seq_len[0]; self.seq_len.len()];
        self.token_offset =
            r.many(self.seq_len.len(), |r| r.between(self.seq_len[0] as usize, self.past_shape[2]) as i32);
        self
    }

    fn draft(self, element: &'static Element) -> Draft {
        let [_, batch, _, hidden] = self.past_shape;
        let update_shape = match self.head_num {
            None => vec![self.seq_len.iter().map(|&rows| rows as usize).sum(), hidden],
            Some(heads) => {
                vec![batch, self.seq_len.first().map_or(1, |&rows| rows as usize), heads, hidden / heads]
            }
        };
        let supported = Element::among(&KvCacheOperation::ELEMENT_TYPES);
        Draft {
            call: Call::KvCacheOperation {
                operator: self.operator,
                layer_id: self.layer_id,
                token_offset: self.token_offset,
                seq_len: self.seq_len,
                lengths: self.lengths,
            },
            // The generator passes every type. A type that the operator does not support is replaced.
            elements: [supported[element.name.len() % supported.len()]; 2],
            cache_shape: self.past_shape.to_vec(),
            update_shape,
        }
    }
}
