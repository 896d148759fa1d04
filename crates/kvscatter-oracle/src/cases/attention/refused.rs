//! Calls that break one rule.

use super::super::Random;
use super::case::AttentionCase;
use super::draft::{Draft, values};
use super::mask::{Entries, MaskPlan};
use super::themes::any;
use crate::attention::{Array, Float, Mask, Positions};

/// One rule: its name, and a function that breaks it in a case that [`plain`] drafted.
pub(super) type Theme = (&'static str, fn(&mut Random, &mut AttentionCase));

pub(super) const THEMES: &[Theme] = &[
    ("mode", |r, case| case.attention.qk_matmul_output_mode = r.pick(&[-1, 4, i64::MAX, i64::MIN])),
    ("softmax_precision", |r, case| {
        case.attention.softmax_precision = Some(r.pick(&[0, 7, 9, -1, i64::MAX]))
    }),
    ("left_window", |r, case| case.attention.left_window_size = r.pick(&[-2, i64::MIN])),
    ("right_window", |r, case| case.attention.right_window_size = r.pick(&[-2, i64::MIN])),
    ("scale", |r, case| case.attention.scale = Some(r.pick(&[-1.0, f64::NEG_INFINITY, f64::NAN]))),
    ("ranks", |r, case| {
        let inputs = &mut case.inputs;
        let input = r.pick(&[0, 1, 2]);
        let shape = &mut [&mut inputs.q, &mut inputs.k, &mut inputs.v][input].shape;
        match r.below(2) {
            0 => shape.insert(0, 1),
            _ => {
                let last = shape.pop().unwrap_or(1);
                shape.iter_mut().last().into_iter().for_each(|dimension| *dimension *= last);
            }
        }
    }),
    ("heads_missing", |r, case| {
        flatten(case);
        *either_heads(r, case) = None;
    }),
    ("heads", |r, case| {
        let heads = Some(r.pick(&[0, -1, 1 << 20, i64::MAX, i64::MIN]));
        *either_heads(r, case) = heads;
    }),
    ("groups", |_, case| {
        resize_keys_and_values(case, 2);
        resize(&mut case.inputs.q, 1, 5);
    }),
    ("no_heads", |_, case| resize_keys_and_values(case, 0)),
    ("key_dimension", |r, case| {
        let dimension = r.pick(&[0, 3]);
        enlarge(&mut case.inputs.k, dimension);
    }),
    ("value_dimension", |r, case| {
        let dimension = r.pick(&[0, 1, 2]);
        enlarge(&mut case.inputs.v, dimension);
    }),
    ("past_alone", |r, case| {
        past(r, case);
        *either_past(r, case) = None;
    }),
    ("past_rank", |r, case| {
        past(r, case);
        either_past(r, case).iter_mut().for_each(|past| past.shape.push(1));
    }),
    ("past_dimension", |r, case| {
        past(r, case);
        let past = either_past(r, case);
        let dimension = r.pick(&[0, 1, 3]);
        past.iter_mut().for_each(|past| enlarge(past, dimension));
    }),
    ("past_lengths_differ", |r, case| {
        past(r, case);
        case.inputs.past_value.iter_mut().for_each(|past| enlarge(past, 2));
    }),
    ("past_with_lengths", |r, case| {
        past(r, case);
        case.inputs.positions = lengths_or_ring(r, case.inputs.q.shape[0]);
    }),
    ("mask_rank", |r, case| {
        let shape = r.pick(&[vec![], vec![1; 5]]);
        case.inputs.mask = Some(Mask::Bool(Array::new(vec![true], &shape)));
    }),
    ("mask_dimension", |r, case| {
        let mut full = scores(case);
        let dimension = r.below(4);
        // Dimensions of 1 can be repeated.
        full[dimension] = full[dimension].max(1) + 1;
        let entries = r.pick(&[Entries::Bool(10), Entries::Ordinary]);
        let plan = MaskPlan { rank: 4, repeated: [false; 3], missing: 0, entries, hidden_rows: 0 };
        case.inputs.mask = Some(plan.mask(r, case.inputs.element, full));
    }),
    ("length_count", |r, case| {
        let batch = case.inputs.q.shape[0];
        let count = r.pick(&[batch - 1, batch + 1]);
        case.inputs.positions = lengths_or_ring(r, count);
    }),
    ("length", |r, case| {
        let [batch, _, _, keys] = scores(case);
        let mut lengths = vec![0; batch];
        lengths[r.below(batch)] = r.pick(&[-1, keys as i64 + 1, i64::MIN, i64::MAX, 1 << 32]);
        case.inputs.positions = Positions::Lengths(lengths);
    }),
    ("ring_tokens", |r, case| {
        let mut tokens = vec![5; case.inputs.q.shape[0]];
        tokens[r.below(case.inputs.q.shape[0])] = r.pick(&[-1, i64::MIN]);
        case.inputs.positions = Positions::Ring(tokens);
    }),
];

/// Drafts a valid call of rank 4 without a mask and a past.
pub(super) fn plain(r: &mut Random, element: Float) -> Draft {
    let mut draft = any(r, element);
    (draft.flat, draft.queries, draft.keys) = (false, r.between(1, 4), r.between(1, 6));
    draft
}

/// Returns this number of lengths of 1, or such a ring.
fn lengths_or_ring(r: &mut Random, count: usize) -> Positions {
    let lengths = vec![1; count];
    if r.below(2) == 0 { Positions::Lengths(lengths) } else { Positions::Ring(lengths) }
}

/// Returns one of the inputs of the past.
fn either_past<'c>(r: &mut Random, case: &'c mut AttentionCase) -> &'c mut Option<Array<f64>> {
    if r.below(2) == 0 { &mut case.inputs.past_key } else { &mut case.inputs.past_value }
}

/// Returns one of the numbers of heads.
fn either_heads<'c>(r: &mut Random, case: &'c mut AttentionCase) -> &'c mut Option<i64> {
    if r.below(2) == 0 { &mut case.attention.q_num_heads } else { &mut case.attention.kv_num_heads }
}

/// Returns the shape of the scores of a case of rank 4.
fn scores(case: &AttentionCase) -> [usize; 4] {
    let [batch, heads, queries] = [0, 1, 2].map(|dimension| case.inputs.q.shape[dimension]);
    [batch, heads, queries, case.inputs.k.shape[2]]
}

/// Gives one dimension another size. The values become 0.
fn resize(array: &mut Array<f64>, dimension: usize, size: usize) {
    array.shape[dimension] = size;
    array.data = vec![0.0; crate::size(&array.shape)];
}

fn enlarge(array: &mut Array<f64>, dimension: usize) {
    resize(array, dimension, array.shape[dimension] + 1);
}

fn resize_keys_and_values(case: &mut AttentionCase, heads: usize) {
    resize(&mut case.inputs.k, 1, heads);
    resize(&mut case.inputs.v, 1, heads);
}

/// Gives the inputs rank 3, with the numbers of heads.
fn flatten(case: &mut AttentionCase) {
    let inputs = &mut case.inputs;
    case.attention.q_num_heads = Some(inputs.q.shape[1] as i64);
    case.attention.kv_num_heads = Some(inputs.k.shape[1] as i64);
    for input in [&mut inputs.q, &mut inputs.k, &mut inputs.v] {
        let [batch, heads, rows, size] = [0, 1, 2, 3].map(|dimension| input.shape[dimension]);
        input.shape = vec![batch, rows, heads * size];
    }
}

fn past(r: &mut Random, case: &mut AttentionCase) {
    let rows = r.between(1, 4);
    let past = |r: &mut Random, new: &Array<f64>| {
        let mut shape = new.shape.clone();
        shape[2] = rows;
        Some(values(r, case.inputs.element, 1.0, &shape))
    };
    case.inputs.past_key = past(r, &case.inputs.k);
    case.inputs.past_value = past(r, &case.inputs.v);
}
