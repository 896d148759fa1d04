//! Properties of `Attention` on random cases. Each relates the outputs of two calls, or compares the outputs
//! with a rule that is stated again here.

use kvscatter_oracle::attention::{Array, Attention, Inputs, Mask, Outputs, Positions};
use kvscatter_oracle::cases::attention::{AttentionCase, exhaustive, random};
use kvscatter_oracle::visibility::Visibility;

/// A number of cases that repeats every theme with every type.
const COUNT: usize = 360;

/// Returns random cases whose inputs have rank 4.
fn rank_4() -> impl Iterator<Item = (AttentionCase, Outputs)> {
    let cases = random(11, COUNT).filter(|case| case.inputs.q.shape.len() == 4);
    cases.filter_map(|case| Some((case.clone(), case.expected().ok()?)))
}

#[track_caller]
fn expect_near(left: &Array<f64>, right: &Array<f64>, name: &str) {
    assert_eq!(left.shape, right.shape, "{name}");
    for (left, right) in left.data.iter().zip(&right.data) {
        let same = left == right || left.is_nan() && right.is_nan();
        assert!(same || (left - right).abs() < 1e-12, "{name}: {left} and {right}");
    }
}

/// Returns the tensor with other rows along one dimension: row `i` is row `rows[i]` of the input.
fn gather<E: Clone>(array: &Array<E>, dimension: usize, rows: &[usize]) -> Array<E> {
    let (outer, inner) = array.shape.split_at(dimension);
    let inner_size: usize = inner[1..].iter().product();
    let outer_size: usize = outer.iter().product();
    let block = |o: usize, row: usize| &array.data[(o * inner[0] + row) * inner_size..][..inner_size];
    let data = (0..outer_size).flat_map(|o| rows.iter().flat_map(move |&row| block(o, row).to_vec()));
    let mut shape = array.shape.clone();
    shape[dimension] = rows.len();
    Array::new(data.collect(), &shape)
}

/// Returns the mask with every dimension of `full`. The missing columns hide their slots.
fn expand(mask: &Mask, full: [usize; 4]) -> Mask {
    fn expanded<E: Clone>(mask: &Array<E>, full: [usize; 4], hidden: E) -> Array<E> {
        let mut shape = vec![1; 4 - mask.shape.len()];
        shape.extend(&mask.shape);
        let mut mask = Array::new(mask.data.clone(), &shape);
        for (dimension, &size) in full[..3].iter().enumerate() {
            if mask.shape[dimension] != size {
                mask = gather(&mask, dimension, &vec![0; size]);
            }
        }
        let columns = mask.shape[3];
        let rows: usize = full[..3].iter().product();
        let row = |row: usize| {
            let entries = mask.data[row * columns..][..columns].to_vec();
            entries.into_iter().chain(vec![hidden.clone(); full[3] - columns])
        };
        Array::new((0..rows).flat_map(row).collect(), &full)
    }
    match mask {
        Mask::Bool(mask) => Mask::Bool(expanded(mask, full, false)),
        Mask::Float(mask) => Mask::Float(expanded(mask, full, f64::NEG_INFINITY)),
    }
}

fn full(outputs: &Outputs) -> [usize; 4] {
    [0, 1, 2, 3].map(|dimension| outputs.qk_matmul_output.shape[dimension])
}

#[test]
fn a_mask_of_any_shape_equals_the_expanded_mask() {
    let mut compared = 0;
    for case in random(12, COUNT) {
        let Some(mask) = &case.inputs.mask else { continue };
        let outputs = case.expected().unwrap();
        let mask = Some(expand(mask, full(&outputs)));
        let expanded = case.attention.run(&Inputs { mask, ..case.inputs.clone() }).unwrap();
        expect_near(&outputs.y, &expanded.y, &case.name);
        expect_near(&outputs.qk_matmul_output, &expanded.qk_matmul_output, &case.name);
        compared += 1;
    }
    assert!(compared > COUNT / 4);
}

#[test]
fn a_boolean_mask_equals_minus_infinity() {
    for case in random(13, COUNT) {
        let Some(Mask::Bool(mask)) = &case.inputs.mask else { continue };
        let bias = mask.data.iter().map(|&seen| if seen { 0.0 } else { f64::NEG_INFINITY }).collect();
        let mask = Some(Mask::Float(Array::new(bias, &mask.shape)));
        let float = case.attention.run(&Inputs { mask, ..case.inputs.clone() }).unwrap();
        expect_near(&case.expected().unwrap().y, &float.y, &case.name);
    }
}

#[test]
fn heads_are_independent() {
    for (case, outputs) in rank_4() {
        let [_, q_heads, _, _] = full(&outputs);
        let kv_heads = case.inputs.k.shape[1];
        let group = q_heads / kv_heads;
        let kv_order: Vec<_> = (0..kv_heads).rev().collect();
        let q_order: Vec<_> = kv_order.iter().flat_map(|&head| head * group..(head + 1) * group).collect();
        let mask = case.inputs.mask.as_ref().map(|mask| match expand(mask, full(&outputs)) {
            Mask::Bool(mask) => Mask::Bool(gather(&mask, 1, &q_order)),
            Mask::Float(mask) => Mask::Float(gather(&mask, 1, &q_order)),
        });
        let Inputs { q, k, v, past_key, past_value, .. } = &case.inputs;
        let past = |past: &Option<Array<f64>>| past.as_ref().map(|past| gather(past, 1, &kv_order));
        let permuted = Inputs {
            q: gather(q, 1, &q_order),
            k: gather(k, 1, &kv_order),
            v: gather(v, 1, &kv_order),
            past_key: past(past_key),
            past_value: past(past_value),
            mask,
            ..case.inputs.clone()
        };
        let permuted = case.attention.run(&permuted).unwrap();
        expect_near(&gather(&outputs.y, 1, &q_order), &permuted.y, &case.name);
    }
}

#[test]
fn both_ranks_give_the_same() {
    for (case, outputs) in rank_4() {
        let flatten = |array: &Array<f64>| {
            let [batch, heads, rows, size] = [0, 1, 2, 3].map(|dimension| array.shape[dimension]);
            let head = |sample: usize, row: usize, head: usize| {
                array.data[((sample * heads + head) * rows + row) * size..][..size].to_vec()
            };
            let mut data = Vec::new();
            for (sample, row) in (0..batch).flat_map(|sample| (0..rows).map(move |row| (sample, row))) {
                (0..heads).for_each(|h| data.extend(head(sample, row, h)));
            }
            Array::new(data, &[batch, rows, heads * size])
        };
        let Inputs { q, k, v, .. } = &case.inputs;
        let heads = |array: &Array<f64>| Some(array.shape[1] as i64);
        let attention = Attention { q_num_heads: heads(q), kv_num_heads: heads(k), ..case.attention.clone() };
        let flat = Inputs { q: flatten(q), k: flatten(k), v: flatten(v), ..case.inputs.clone() };
        let flat = attention.run(&flat).unwrap();
        expect_near(&flatten(&outputs.y), &flat.y, &case.name);
        expect_near(&outputs.present_key, &flat.present_key, &case.name);
    }
}

#[test]
fn a_past_equals_a_filled_cache() {
    let mut compared = 0;
    for (case, outputs) in rank_4() {
        if case.inputs.past_key.is_none() {
            continue;
        }
        // Lengths place the last query in the last slot. The past places it `keys - queries` slots earlier.
        let [batch, _, queries, total] = full(&outputs);
        if case.inputs.k.shape[2] < queries {
            continue;
        }
        let unbounded = Attention {
            is_causal: false,
            left_window_size: -1,
            right_window_size: -1,
            ..case.attention.clone()
        };
        let with_past = unbounded.run(&case.inputs).unwrap();
        let cache = Inputs {
            k: outputs.present_key,
            v: outputs.present_value,
            past_key: None,
            past_value: None,
            positions: Positions::Lengths(vec![total as i64; batch]),
            ..case.inputs.clone()
        };
        expect_near(&with_past.y, &unbounded.run(&cache).unwrap().y, &case.name);
        compared += 1;
    }
    assert!(compared > 10);
}

#[test]
fn a_ring_equals_the_linear_cache_that_it_unrolls_to() {
    let mut wrapped = 0;
    for (case, outputs) in rank_4() {
        let Positions::Ring(tokens) = &case.inputs.positions else { continue };
        let [.., capacity] = full(&outputs);
        for (sample, &tokens) in tokens.iter().enumerate() {
            let tokens = tokens as usize;
            let count = tokens.min(capacity);
            // The positions of the slots, oldest first. The linear cache starts with the oldest.
            let oldest = tokens - count;
            let slots: Vec<_> = (0..count).map(|n| (oldest + n) % capacity).collect();
            wrapped += usize::from(tokens > capacity);
            let one = |array: &Array<f64>| gather(array, 0, &[sample]);
            let mask = case.inputs.mask.as_ref().map(|mask| match expand(mask, full(&outputs)) {
                Mask::Bool(mask) => Mask::Bool(gather(&gather(&mask, 0, &[sample]), 3, &slots)),
                Mask::Float(mask) => Mask::Float(gather(&one(&mask), 3, &slots)),
            });
            let linear = Inputs {
                q: one(&case.inputs.q),
                k: gather(&one(&case.inputs.k), 2, &slots),
                v: gather(&one(&case.inputs.v), 2, &slots),
                mask,
                positions: Positions::Lengths(vec![count as i64]),
                ..case.inputs.clone()
            };
            let linear = case.attention.run(&linear).unwrap();
            expect_near(&one(&outputs.y), &linear.y, &case.name);
        }
    }
    assert!(wrapped > 10);
}

#[test]
fn weights_follow_the_predicate_of_visibility() {
    for case in exhaustive().step_by(7) {
        let outputs = case.expected().unwrap();
        let [batch, heads, queries, total] = full(&outputs);
        let past = case.inputs.past_key.as_ref().map_or(0, |past| past.shape[2]);
        let Attention { is_causal, left_window_size, right_window_size, .. } = case.attention;
        let right = if is_causal { Some(0) } else { u64::try_from(right_window_size).ok() };
        for sample in 0..batch {
            let (tokens, first, ring) = match &case.inputs.positions {
                Positions::Full => (total as i64, past as i64, false),
                Positions::Lengths(lengths) => (lengths[sample], lengths[sample] - queries as i64, false),
                Positions::Ring(tokens) => (tokens[sample], tokens[sample] - queries as i64, true),
            };
            let left = u64::try_from(left_window_size).ok();
            let visibility = Visibility { tokens: tokens as u64, capacity: total as u64, ring, left, right };
            for (query, slot) in (0..queries).flat_map(|query| (0..total).map(move |slot| (query, slot))) {
                let masked = matches!(&case.inputs.mask, Some(Mask::Bool(mask)) if !mask.data[slot]);
                let seen = !masked && visibility.sees(first + query as i64, slot as u64);
                for head in 0..heads {
                    let weight = outputs.qk_matmul_output.data
                        [((sample * heads + head) * queries + query) * total + slot];
                    assert_eq!(weight > 0.0, seen, "{case:?}: sample {sample}, query {query}, slot {slot}");
                }
            }
        }
    }
}
