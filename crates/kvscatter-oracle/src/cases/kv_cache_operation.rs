//! Cases of Ascend ATB `KVCacheOperation`.

use super::draft::{Draft, Theme, With, supported, unsupported};
use super::{Call, Element, Random};
use crate::OutOfRange;
use crate::ascend::KvCacheOperation;

pub(super) const THEMES: &[Theme] = &[
    ("ragged", |r, e| write(r).draft(e)),
    ("decode", |r, e| write(r).with(|write| write.seq_len.fill(1)).draft(e)),
    ("fills_the_last_slot", |r, e| {
        write(r).with(|write| write.token_offset.fill(write.past_shape[2] as i32)).draft(e)
    }),
    ("no_samples", |r, e| {
        let mut write = write(r);
        write.past_shape[1] = 0;
        (write.seq_len, write.token_offset) = (vec![], vec![]);
        write.draft(e)
    }),
    ("four_dimensions", |r, e| write(r).four_dimensions(r).draft(e)),
    ("lengths", |r, e| {
        let mut write = any(r);
        write.lengths = Some(write.seq_len.iter().map(|&rows| r.between(0, rows as usize) as i64).collect());
        write.draft(e)
    }),
    ("skipped_samples", |r, e| {
        let mut write = write(r);
        write.operator.out_of_range = OutOfRange::SkipSample;
        let end = write.past_shape[2] as i32;
        let ends = [-1, 0, end, end + 1, i32::MIN, i32::MAX];
        write.token_offset = r.many(write.seq_len.len(), |r| r.pick(&ends));
        write.draft(e)
    }),
    ("refused_type", |r, e| {
        write(r).draft(e).with(|draft| draft.elements = [unsupported(r, &KvCacheOperation::ELEMENT_TYPES); 2])
    }),
    ("refused_past_rank", |r, e| write(r).draft(e).with(|draft| draft.cache_shape.pop())),
    ("refused_new_kv_rank", |r, e| write(r).draft(e).with(|draft| draft.update_shape.insert(0, 1))),
    ("refused_hidden_size", |r, e| any(r).draft(e).with(|draft| draft.cache_shape[3] += 1)),
    ("refused_new_kv_batch", |r, e| {
        write(r).four_dimensions(r).draft(e).with(|draft| draft.update_shape[0] += 1)
    }),
    ("refused_layer_ids", |r, e| {
        write(r).with(|write| write.layer_id = r.pick(&[vec![], vec![0, 0]])).draft(e)
    }),
    ("refused_token_offset_count", |r, e| write(r).with(|write| write.token_offset.push(1)).draft(e)),
    ("refused_seq_len_count", |r, e| write(r).draft(e).with(|draft| draft.seq_len().pop())),
    ("refused_layer", |r, e| {
        let mut write = write(r);
        write.layer_id = vec![r.pick(&[-1, write.past_shape[0] as i32, i32::MIN, i32::MAX])];
        write.draft(e)
    }),
    ("refused_seq_len", |r, e| {
        write(r).draft(e).with(|draft| {
            let sample = r.below(draft.seq_len().len());
            draft.seq_len()[sample] = r.pick(&[0, -1, i32::MIN, i32::MAX]);
        })
    }),
    ("refused_unequal_seq_len", |r, e| {
        let write = write(r).four_dimensions(r).with(|write| write.past_shape[2] += 1);
        write.draft(e).with(|draft| draft.seq_len()[0] += 1)
    }),
    ("refused_seq_len_total", |r, e| {
        write(r).draft(e).with(|draft| {
            draft.update_shape[0] = r.pick(&[draft.update_shape[0] + 1, draft.update_shape[0] - 1]);
        })
    }),
    ("refused_token_offset_below_seq_len", |r, e| {
        let mut write = write(r);
        let sample = r.below(write.seq_len.len());
        write.token_offset[sample] = r.pick(&[write.seq_len[sample] - 1, 0, -1, i32::MIN]);
        write.draft(e)
    }),
    ("refused_token_offset_beyond_the_cache", |r, e| {
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

/// Creates a call with an update of either rank.
fn any(r: &mut Random) -> Write {
    if r.below(2) == 0 { write(r) } else { write(r).four_dimensions(r) }
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
        Draft {
            call: Call::KvCacheOperation {
                operator: self.operator,
                layer_id: self.layer_id,
                token_offset: self.token_offset,
                seq_len: self.seq_len,
                lengths: self.lengths,
            },
            elements: [supported(element, &KvCacheOperation::ELEMENT_TYPES); 2],
            cache_shape: self.past_shape.to_vec(),
            update_shape,
        }
    }
}

impl Draft {
    fn seq_len(&mut self) -> &mut Vec<i32> {
        match &mut self.call {
            Call::KvCacheOperation { seq_len, .. } => seq_len,
            call => unreachable!("{call:?}"),
        }
    }
}
