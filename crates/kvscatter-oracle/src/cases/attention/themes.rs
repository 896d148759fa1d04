//! The ideas that random cases follow.

use super::super::Random;
use super::super::draft::With;
use super::draft::Draft;
use super::mask::{Entries, MaskPlan};
use crate::attention::{Attention, Float, Positions};

/// One adversarial idea: its name, and a function that drafts a call for an element type.
pub(super) type Theme = (&'static str, fn(&mut Random, Float) -> Draft);

pub(super) const THEMES: &[Theme] = &[
    ("plain", |r, e| any(r, e)),
    ("causal", |r, e| any(r, e).causal()),
    ("causal_square", |r, e| any(r, e).causal().with(|draft| draft.keys = draft.queries)),
    ("wide_heads", |r, e| {
        let sizes = [64, 80, 128];
        any(r, e).causal().ragged(r).with(|draft| {
            (draft.head_size, draft.value_size) = (r.pick(&sizes), r.pick(&sizes));
        })
    }),
    ("decode", |r, e| any(r, e).decode().ragged(r)),
    ("decode_causal_wide", |r, e| {
        any(r, e).causal().decode().ragged(r).with(|draft| {
            draft.head_size = r.pick(&[64, 80, 128]);
            draft.value_size = draft.head_size;
        })
    }),
    ("long", |r, e| long(r, e).ragged(r)),
    ("long_causal_masked", |r, e| {
        let entries = any_entries(r);
        long(r, e).causal().ragged(r).masked(r, entries)
    }),
    ("long_ring", |r, e| long(r, e).causal().ring(r).window(r)),
    ("past", |r, e| any(r, e).past(r)),
    ("past_causal", |r, e| any(r, e).past(r).causal().window(r)),
    ("past_masked", |r, e| {
        let entries = any_entries(r);
        any(r, e).past(r).masked(r, entries)
    }),
    ("past_empty", |r, e| any(r, e).causal().with(|draft| draft.past = Some(0))),
    ("lengths_zero", |r, e| any(r, e).lengths(r, |_, _| 0)),
    ("lengths_full", |r, e| any(r, e).causal().lengths(r, |_, keys| keys)),
    ("lengths_below_the_queries", |r, e| {
        let draft = any(r, e).causal().with(|draft| draft.keys = draft.keys.max(draft.queries));
        let queries = draft.queries;
        draft.lengths(r, |r, _| r.between(0, queries))
    }),
    ("lengths_ragged_window", |r, e| any(r, e).causal().ragged(r).window(r)),
    ("lengths_masked", |r, e| {
        let entries = any_entries(r);
        any(r, e).ragged(r).masked(r, entries)
    }),
    ("window", |r, e| any(r, e).window(r)),
    ("window_masked", |r, e| {
        let entries = any_entries(r);
        any(r, e).window(r).masked(r, entries)
    }),
    ("mask_bool", |r, e| any(r, e).masked(r, Entries::Bool(30))),
    ("mask_bool_sparse", |r, e| any(r, e).masked(r, Entries::Bool(95))),
    ("mask_ordinary", |r, e| any(r, e).masked(r, Entries::Ordinary)),
    ("mask_infinite", |r, e| any(r, e).masked(r, Entries::Infinite(40))),
    ("mask_lowest", |r, e| any(r, e).masked(r, Entries::Lowest(60))),
    ("mask_lowest_rows", |r, e| any(r, e).masked(r, Entries::Lowest(60)).hidden_rows(40)),
    ("mask_lowest_rows_causal", |r, e| {
        any(r, e).causal().ragged(r).masked(r, Entries::Lowest(80)).hidden_rows(30)
    }),
    ("mask_large", |r, e| {
        let draft = any(r, e).masked(r, Entries::Large(70)).hidden_rows(20);
        draft.with(|draft| draft.zero_queries = true)
    }),
    ("mask_hidden_rows", |r, e| {
        let entries = r.pick(&[Entries::Bool(50), Entries::Infinite(50)]);
        any(r, e).masked(r, entries).hidden_rows(50)
    }),
    ("mask_hides_all", |r, e| {
        let entries = r.pick(&[Entries::Bool(100), Entries::Infinite(100), Entries::Lowest(100)]);
        any(r, e).masked(r, entries)
    }),
    ("mask_short", |r, e| {
        let entries = any_entries(r);
        let draft = any(r, e).masked(r, entries);
        let missing = r.between(0, draft.keys);
        draft.without_columns(missing)
    }),
    ("mask_short_lengths", |r, e| {
        let entries = any_entries(r);
        let draft = any(r, e).causal().ragged(r).masked(r, entries);
        let longest = match &draft.positions {
            Positions::Lengths(lengths) => lengths.iter().max().map_or(0, |&length| length as usize),
            _ => 0,
        };
        let missing = draft.keys - longest;
        draft.without_columns(missing)
    }),
    ("ring", |r, e| any(r, e).ring(r)),
    ("ring_decode", |r, e| any(r, e).causal().decode().ring(r)),
    ("ring_window", |r, e| any(r, e).causal().ring(r).window(r)),
    ("ring_masked", |r, e| {
        let entries = any_entries(r);
        any(r, e).causal().ring(r).masked(r, entries)
    }),
    ("no_samples", |r, e| {
        any(r, e).ragged(r).with(|draft| (draft.batch, draft.positions) = (0, Positions::Lengths(vec![])))
    }),
    ("no_queries", |r, e| any(r, e).with(|draft| draft.queries = 0)),
    ("no_keys", |r, e| any(r, e).causal().with(|draft| draft.keys = 0)),
];

fn any_entries(r: &mut Random) -> Entries {
    r.pick(&[Entries::Bool(40), Entries::Ordinary, Entries::Infinite(40), Entries::Lowest(60)])
}

/// Drafts a call without a mask, where every slot is filled and no size is 0.
pub(super) fn any(r: &mut Random, element: Float) -> Draft {
    let (q_heads, kv_heads) = r.pick(&[(1, 1), (2, 2), (4, 2), (6, 2), (8, 1)]);
    let head_size = r.between(1, 40);
    // ONNX stores both attributes in float32. The default is among the scales.
    let scale = (r.pick(&[0.5, 1.0, 1.4]) / (head_size as f64).sqrt()) as f32;
    let attention = Attention {
        scale: r.pick(&[None, None, Some(f64::from(scale))]),
        softcap: r.pick(&[0.0, 0.0, 0.0, 2.0, 30.0]),
        qk_matmul_output_mode: r.below(4) as i64,
        softmax_precision: r.pick(&[None, None, Some(1)]),
        ..Attention::default()
    };
    Draft {
        element,
        attention,
        batch: r.between(1, 4),
        q_heads,
        kv_heads,
        queries: r.between(1, 20),
        past: None,
        keys: r.between(1, 70),
        head_size,
        value_size: if r.below(2) == 0 { head_size } else { r.between(1, 40) },
        flat: r.below(2) == 0,
        positions: Positions::Full,
        mask: None,
        zero_queries: false,
    }
}

/// Drafts a call with so many slots that they fill several blocks.
fn long(r: &mut Random, element: Float) -> Draft {
    any(r, element).with(|draft| {
        (draft.batch, draft.queries, draft.keys) = (r.between(1, 2), r.between(1, 5), r.between(600, 1200));
    })
}

impl Draft {
    fn causal(self) -> Self {
        self.with(|draft| draft.attention.is_causal = true)
    }

    fn decode(self) -> Self {
        Self { queries: 1, ..self }
    }

    fn past(self, r: &mut Random) -> Self {
        Self { past: Some(r.between(1, 40)), ..self }
    }

    fn lengths(mut self, r: &mut Random, mut length: impl FnMut(&mut Random, usize) -> usize) -> Self {
        let keys = self.keys;
        self.positions = Positions::Lengths(self.many(r, |r| length(r, keys)));
        self
    }

    fn ragged(self, r: &mut Random) -> Self {
        self.lengths(r, |r, keys| {
            let any = r.between(0, keys);
            r.pick(&[0, 1, keys, keys - 1, any, any, any, any])
        })
    }

    fn ring(mut self, r: &mut Random) -> Self {
        let (queries, keys) = (self.queries, self.keys);
        self.positions = Positions::Ring(self.many(r, |r| {
            let (below, above) = (r.between(0, keys), keys + r.between(1, 3 * keys));
            let far = r.pick(&[1_000_003, 1 << 40, i64::MAX as usize]);
            let near = [0, queries - 1, queries, keys - 1, keys, keys + 1];
            r.pick(&[&near[..], &[below, below, above, above, above, far]].concat())
        }));
        self
    }

    fn window(mut self, r: &mut Random) -> Self {
        let total = self.total();
        let bounds = [-1, 0, 1, r.between(0, 8) as i64, r.between(0, total) as i64, i64::MAX];
        self.attention.left_window_size = r.pick(&bounds);
        self.attention.right_window_size = r.pick(&bounds);
        self
    }

    fn masked(self, r: &mut Random, entries: Entries) -> Self {
        Self { mask: Some(MaskPlan::any(r, entries)), ..self }
    }

    fn hidden_rows(self, percentage: usize) -> Self {
        Self { mask: self.mask.map(|mask| MaskPlan { hidden_rows: percentage, ..mask }), ..self }
    }

    fn without_columns(self, missing: usize) -> Self {
        Self { mask: self.mask.map(|mask| MaskPlan { missing, ..mask }), ..self }
    }
}
