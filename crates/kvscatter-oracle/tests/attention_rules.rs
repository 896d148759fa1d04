//! Tests `Attention` against values that were computed by hand.
//!
//! Most scores are 0, so that the slots that a row sees weigh the same. The values are powers of two, so that
//! the mean shows which slots these are.

use kvscatter_oracle::attention::{
    Array, Attention, AttentionRefusal, Float, Inputs, Mask, Outputs, Positions,
};

const LOWEST: f64 = f32::MIN as f64;
const HIDDEN: f64 = f64::NEG_INFINITY;

/// Returns one sample with one head, `queries` queries of 0 and `slots` slots with the values 1, 2, 4, …
fn inputs(queries: usize, slots: usize) -> Inputs {
    Inputs {
        element: Float::F32,
        q: Array::new(vec![0.0; queries], &[1, 1, queries, 1]),
        k: Array::new(vec![1.0; slots], &[1, 1, slots, 1]),
        v: Array::new((0..slots).map(|slot| f64::from(1 << slot)).collect(), &[1, 1, slots, 1]),
        mask: None,
        past_key: None,
        past_value: None,
        positions: Positions::Full,
    }
}

fn bool_mask(mask: &[u8], shape: &[usize]) -> Option<Mask> {
    Some(Mask::Bool(Array::new(mask.iter().map(|&bit| bit == 1).collect(), shape)))
}

fn float_mask(mask: &[f64], shape: &[usize]) -> Option<Mask> {
    Some(Mask::Float(Array::new(mask.to_vec(), shape)))
}

/// Returns the means that `rows` lists as slots.
fn means(rows: &[&[u32]]) -> Vec<f64> {
    let mean = |row: &&[u32]| {
        let sum: f64 = row.iter().map(|&slot| f64::from(1 << slot)).sum();
        if row.is_empty() { 0.0 } else { sum / row.len() as f64 }
    };
    rows.iter().map(mean).collect()
}

#[track_caller]
fn expect_means(attention: &Attention, inputs: &Inputs, rows: &[&[u32]]) {
    let y = attention.run(inputs).map(|outputs| outputs.y.data).unwrap_or_default();
    let near = y.iter().zip(means(rows)).all(|(y, mean)| (y - mean).abs() < 1e-12);
    assert!(near && y.len() == rows.len(), "{y:?} instead of the means of {rows:?}");
}

fn causal() -> Attention {
    Attention { is_causal: true, ..Attention::default() }
}

#[test]
fn scores_are_scaled_and_capped_and_weigh_the_values() {
    let inputs = Inputs {
        q: Array::new(vec![1.0, 2.0, 0.0, 1.0], &[1, 1, 1, 4]),
        k: Array::new(vec![4.0, 2.0, 9.0, 0.0, 0.0, 0.0, 0.0, 4.0], &[1, 1, 2, 4]),
        v: Array::new(vec![1.0, 10.0, 3.0, 30.0], &[1, 1, 2, 2]),
        ..inputs(1, 2)
    };
    // The products are 8 and 4. They are divided by the root of 4.
    let Outputs { y, qk_matmul_output, .. } = Attention::default().run(&inputs).unwrap();
    assert_eq!(qk_matmul_output.data, [4.0, 2.0]);
    let second = 1.0 / (1.0 + 2f64.exp());
    assert!((y.data[0] - (1.0 + 2.0 * second)).abs() < 1e-15);
    assert!((y.data[1] - (10.0 + 20.0 * second)).abs() < 1e-14);

    let attention =
        |mode| Attention { scale: Some(0.25), softcap: 3.0, qk_matmul_output_mode: mode, ..causal() };
    let output = |mode| attention(mode).run(&inputs).unwrap().qk_matmul_output.data;
    let capped = 3.0 * (2.0 / 3f64).tanh();
    assert_eq!(output(0), [2.0, 1.0]);
    assert_eq!(output(1), [capped, 3.0 * (1.0 / 3f64).tanh()]);
    assert_eq!(output(2), [capped, HIDDEN]);
    assert_eq!(output(3), [1.0, 0.0]);
}

#[test]
fn groups_of_query_heads_share_a_head_of_keys_in_both_layouts() {
    let four = Inputs {
        q: Array::new(vec![0.0; 4], &[1, 4, 1, 1]),
        k: Array::new(vec![0.0; 4], &[1, 2, 2, 1]),
        v: Array::new((1..=8).map(f64::from).collect(), &[1, 2, 2, 2]),
        ..inputs(1, 2)
    };
    let y = Attention::default().run(&four).unwrap().y;
    assert_eq!(y, Array::new(vec![2.0, 3.0, 2.0, 3.0, 6.0, 7.0, 6.0, 7.0], &[1, 4, 1, 2]));

    let three = Inputs {
        q: Array::new(vec![0.0; 4], &[1, 1, 4]),
        k: Array::new(vec![0.0; 4], &[1, 2, 2]),
        v: Array::new(vec![1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0], &[1, 2, 4]),
        ..four
    };
    let attention = Attention { q_num_heads: Some(4), kv_num_heads: Some(2), ..Attention::default() };
    let outputs = attention.run(&three).unwrap();
    assert_eq!(outputs.y, Array::new(y.data, &[1, 1, 8]));
    assert_eq!(outputs.present_value, Array::new((1..=8).map(f64::from).collect(), &[1, 2, 2, 2]));
}

#[test]
fn causality_and_windows_count_from_the_first_query() {
    expect_means(&causal(), &inputs(3, 4), &[&[0], &[0, 1], &[0, 1, 2]]);
    let window = Attention { left_window_size: 1, right_window_size: 1, ..Attention::default() };
    expect_means(&window, &inputs(3, 4), &[&[0, 1], &[0, 1, 2], &[1, 2, 3]]);
    let both = Attention { is_causal: true, ..window };
    expect_means(&both, &inputs(3, 4), &[&[0], &[0, 1], &[1, 2]]);
}

#[test]
fn the_past_precedes_the_keys() {
    let past = Inputs {
        past_key: Some(Array::new(vec![7.0, 8.0], &[1, 1, 2, 1])),
        past_value: Some(Array::new(vec![4.0, 8.0], &[1, 1, 2, 1])),
        ..inputs(2, 2)
    };
    let Outputs { y, present_key, present_value, .. } = causal().run(&past).unwrap();
    assert_eq!(present_key, Array::new(vec![7.0, 8.0, 1.0, 1.0], &[1, 1, 4, 1]));
    assert_eq!(present_value, Array::new(vec![4.0, 8.0, 1.0, 2.0], &[1, 1, 4, 1]));
    assert!((y.data[0] - 13.0 / 3.0).abs() < 1e-15 && (y.data[1] - 15.0 / 4.0).abs() < 1e-15, "{y:?}");
}

#[test]
fn lengths_end_the_cache_and_place_the_queries() {
    let lengths = |length| Inputs { positions: Positions::Lengths(vec![length]), ..inputs(2, 4) };
    expect_means(&Attention::default(), &lengths(3), &[&[0, 1, 2], &[0, 1, 2]]);
    expect_means(&causal(), &lengths(4), &[&[0, 1, 2], &[0, 1, 2, 3]]);
    expect_means(&causal(), &lengths(1), &[&[], &[0]]);
    expect_means(&Attention::default(), &lengths(0), &[&[], &[]]);
}

#[test]
fn a_ring_contains_its_last_positions() {
    // The slots contain the positions 4, 5, 2 and 3.
    let ring = |tokens| Inputs { positions: Positions::Ring(vec![tokens]), ..inputs(2, 4) };
    expect_means(&Attention::default(), &ring(6), &[&[0, 1, 2, 3], &[0, 1, 2, 3]]);
    expect_means(&causal(), &ring(6), &[&[0, 2, 3], &[0, 1, 2, 3]]);
    expect_means(&Attention { left_window_size: 1, ..causal() }, &ring(6), &[&[0, 3], &[0, 1]]);
    expect_means(&causal(), &ring(1), &[&[], &[0]]);
}

#[test]
fn masks_hide_slots_and_short_masks_are_padded() {
    let masked = |mask| Inputs { mask, ..inputs(2, 3) };
    let plain = Attention::default();
    expect_means(&plain, &masked(bool_mask(&[1, 0, 1, 0, 0, 0], &[2, 3])), &[&[0, 2], &[]]);
    expect_means(&plain, &masked(bool_mask(&[0, 1, 1], &[3])), &[&[1, 2], &[1, 2]]);
    expect_means(&plain, &masked(bool_mask(&[1, 0, 1, 1], &[1, 1, 2, 2])), &[&[0], &[0, 1]]);
    expect_means(&plain, &masked(bool_mask(&[1], &[1])), &[&[0], &[0]]);
    expect_means(&plain, &masked(bool_mask(&[], &[0])), &[&[], &[]]);
    expect_means(&plain, &masked(float_mask(&[0.0, HIDDEN, 0.0], &[3])), &[&[0, 2], &[0, 2]]);
    // The second value weighs e³ times as much.
    let y = plain.run(&masked(float_mask(&[0.0, 3.0], &[2]))).unwrap().y.data;
    assert!((y[0] - (1.0 + 2.0 * 3f64.exp()) / (1.0 + 3f64.exp())).abs() < 1e-15);
}

#[test]
fn the_lowest_value_hides_a_slot_unless_there_is_nothing_better() {
    let masked = |mask: &[f64]| Inputs {
        q: Array::new(vec![3.0], &[1, 1, 1, 1]),
        k: Array::new(vec![-1.0, 1.0, 2.0], &[1, 1, 3, 1]),
        mask: float_mask(mask, &[3]),
        ..inputs(1, 3)
    };
    let plain = Attention::default();
    expect_means(&plain, &masked(&[LOWEST, 0.0, LOWEST]), &[&[1]]);
    expect_means(&plain, &masked(&[LOWEST, HIDDEN, LOWEST]), &[&[0, 2]]);
    expect_means(&plain, &masked(&[LOWEST, LOWEST, LOWEST]), &[&[0, 1, 2]]);
    let half = Inputs { element: Float::F16, ..masked(&[-65504.0, -65504.0, HIDDEN]) };
    expect_means(&plain, &half, &[&[0, 1]]);
    let mode_2 = Attention { qk_matmul_output_mode: 2, ..plain };
    let outputs = mode_2.run(&masked(&[LOWEST, HIDDEN, 1.0])).unwrap();
    assert_eq!(outputs.qk_matmul_output.data, [LOWEST, HIDDEN, 7.0]);
}

#[test]
fn values_of_hidden_slots_have_no_influence() {
    let masks =
        [bool_mask(&[1, 0], &[2]), float_mask(&[0.0, HIDDEN], &[2]), float_mask(&[0.0, LOWEST], &[2])];
    for (mask, poison) in masks
        .into_iter()
        .flat_map(|mask| [f64::NAN, f64::INFINITY, HIDDEN].map(|poison| (mask.clone(), poison)))
    {
        let mut inputs = Inputs { mask, ..inputs(2, 2) };
        (inputs.k.data[1], inputs.v.data[1]) = (poison, poison);
        expect_means(&Attention::default(), &inputs, &[&[0], &[0]]);
        assert_eq!(Attention::default().attends(&inputs).unwrap().data, [true, false, true, false]);
    }
    let mut seen = inputs(1, 2);
    seen.v.data[1] = f64::NAN;
    assert!(Attention::default().run(&seen).unwrap().y.data[0].is_nan());
}

#[test]
fn empty_dimensions_give_zeros_or_nothing() {
    expect_means(&Attention::default(), &inputs(2, 0), &[&[], &[]]);
    expect_means(&Attention::default(), &inputs(0, 2), &[]);
    let ring = Inputs { positions: Positions::Ring(vec![5]), ..inputs(1, 0) };
    expect_means(&causal(), &ring, &[&[]]);
    let sample = Inputs {
        q: Array::new(vec![], &[0, 2, 1, 3]),
        k: Array::new(vec![], &[0, 1, 4, 3]),
        v: Array::new(vec![], &[0, 1, 4, 2]),
        ..inputs(1, 1)
    };
    assert_eq!(Attention::default().run(&sample).unwrap().y.shape, [0, 2, 1, 2]);
}

#[test]
fn a_broken_rule_is_reported_with_its_numbers() {
    let refused = |attention: Attention, inputs: Inputs| attention.run(&inputs).unwrap_err();
    let lengths = |length| Inputs { positions: Positions::Lengths(vec![length]), ..inputs(1, 4) };
    for length in [-1, 5, i64::MAX, i64::MIN] {
        let refusal = AttentionRefusal::Length { sample: 0, length, slots: 4 };
        assert_eq!(refused(causal(), lengths(length)), refusal);
    }
    let ring = |tokens| Inputs { positions: Positions::Ring(vec![tokens]), ..inputs(1, 4) };
    let refusal = AttentionRefusal::Length { sample: 0, length: -1, slots: 4 };
    assert_eq!(refused(causal(), ring(-1)), refusal);
    assert!(causal().run(&ring(i64::MAX)).is_ok());
    let mask = Inputs { mask: bool_mask(&[1; 5], &[5]), ..inputs(1, 4) };
    let refusal = AttentionRefusal::MaskDimension { dimension: 3, given: 5, needed: 4 };
    assert_eq!(refused(causal(), mask), refusal);
}
