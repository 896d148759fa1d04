//! Long calls whose positions, holes and pasts end near the boundaries of chunks.

use half::{bf16, f16};
use kvscatter_attention::{Attention, Scores};
use kvscatter_oracle::attention::{self as oracle, Array, Float, Inputs, Mask, Positions};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::{AttentionCase, paint};

use crate::call::{Operands, Tensor, operator};
use crate::element::{Element, bits};
use crate::scene::{Ways, check};
use crate::variants::Variant;

/// Returns values between `-range` and `range`, or if `exact`, small multiples of `range`.
pub(crate) fn values(r: &mut Random, element: Float, range: f64, exact: bool, shape: &[usize]) -> Array<f64> {
    let value = |r: &mut Random| {
        if exact {
            return element.round(range * (r.below(9) as f64 - 4.0));
        }
        element.round(range * (r.below(1 << 24) as f64 / f64::from(1 << 23) - 1.0))
    };
    Array::new(r.many(shape.iter().product(), value), shape)
}

/// Which of `count` slots a row shows: stretches of random lengths, some of them long, or one stretch that may wrap
/// around the end.
fn holes(r: &mut Random, count: usize) -> Vec<bool> {
    if r.below(4) == 0 && count > 0 {
        let (start, length) = (r.below(count), r.below(count + 1));
        return (0..count).map(|slot| (slot + count - start) % count < length).collect();
    }
    let longest = r.pick(&[1, 2, 7, 40, 300, 1100]);
    let mut seen = r.below(2) == 0;
    let mut shown = Vec::new();
    while shown.len() < count {
        let length = r.between(1, longest);
        shown.extend(std::iter::repeat_n(seen, length));
        seen = !seen;
        if r.below(20) == 0 {
            seen = false;
        }
    }
    shown.truncate(count);
    shown
}

/// Returns a call whose sizes are near those of chunks and groups. Scores that are exact may be large.
fn case(seed: u64, n: usize) -> AttentionCase {
    let r = &mut Random::new(seed, n);
    let element = Float::ALL[n % 3];
    let (q_heads, kv_heads) = r.pick(&[(1, 1), (2, 1), (4, 2), (3, 3), (5, 1), (14, 2)]);
    let batch = r.between(1, 2);
    let queries = r.pick(&[1, 1, 1, 2, 3, 5, 9, 19]);
    let head_size = r.pick(&[1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129]);
    let value_size = r.pick(&[0, 1, 1, 3, 8, 15, 17, 24, 31, 48, 64, 65, 127, 129, 130, 257]);
    let near = |r: &mut Random| {
        let base = r.pick(&[0, 16, 32, 128, 1024, 1024, 2048]);
        (base + r.below(20)).saturating_sub(r.below(20))
    };
    let kind = r.below(4);
    let is_ring = kind == 2;
    let has_past = kind == 1;
    let total = near(r).max(if is_ring { queries } else { 0 });
    let past = if has_past { near(r).min(total) } else { 0 };
    let keys = total - past;
    let flat = r.below(2) == 0;
    let mut attention = oracle::Attention {
        is_causal: r.below(2) == 0,
        softcap: r.pick(&[0.0, 0.0, 5.0]),
        qk_matmul_output_mode: r.below(4) as i64,
        scale: r.pick(&[None, Some(0.0), Some(0.125)]),
        ..oracle::Attention::default()
    };
    if r.below(3) == 0 {
        attention.left_window_size = near(r) as i64;
    }
    if r.below(4) == 0 {
        attention.right_window_size = near(r) as i64;
    }
    if flat {
        attention.q_num_heads = Some(q_heads as i64);
        attention.kv_num_heads = Some(kv_heads as i64);
    }
    let positions = match kind {
        2 => Positions::Ring(r.many(batch, |r| {
            let n = near(r) + r.pick(&[0, 0, 1000, 5000, 1 << 40]);
            n as i64
        })),
        3 => Positions::Lengths(r.many(batch, |r| near(r).min(total) as i64)),
        _ => Positions::Full,
    };
    let shape = |heads: usize, rows: usize, size: usize| {
        if flat { vec![batch, rows, heads * size] } else { vec![batch, heads, rows, size] }
    };
    let exact = r.below(4) == 0 && element == Float::F32;
    let range = if exact {
        attention.scale = r.pick(&[Some(1.0), Some(0.5), Some(16.0)]);
        attention.softcap = 0.0;
        16.0
    } else {
        1.5 / (head_size as f64).sqrt().sqrt()
    };
    let q = values(r, element, range, exact, &shape(q_heads, queries, head_size));
    let k = values(r, element, range, exact, &shape(kv_heads, keys, head_size));
    let v = values(r, element, 1.0, false, &shape(kv_heads, keys, value_size));
    let past_of = |r: &mut Random, range, exact, size| {
        has_past.then(|| values(r, element, range, exact, &[batch, kv_heads, past, size]))
    };
    let past_key = past_of(r, range, exact, head_size);
    let past_value = past_of(r, 1.0, false, value_size);
    let mask = (r.below(3) != 0).then(|| {
        let rank = r.between(1, 4);
        let mut full = [batch, q_heads, queries, total];
        for dim in &mut full[..3] {
            if r.below(2) == 0 {
                *dim = 1;
            }
        }
        if r.below(4) == 0 {
            full[3] = near(r).min(total);
        }
        let shape = full[4 - rank..].to_vec();
        let rows: usize = shape[..rank - 1].iter().product();
        let shared = holes(r, full[3]);
        let one = r.below(2) == 0;
        let shown: Vec<bool> =
            (0..rows).flat_map(|_| if one { shared.clone() } else { holes(r, full[3]) }).collect();
        if r.below(2) == 0 {
            Mask::Bool(Array::new(shown, &shape))
        } else {
            let hide = r.pick(&[f64::NEG_INFINITY, element.lowest()]);
            let any = r.below(2) == 0 && !exact;
            let data = shown
                .into_iter()
                .map(|shown| match shown {
                    true if any => element.round(r.below(4096) as f64 / 512.0 - 4.0),
                    true => 0.0,
                    false if r.below(9) == 0 => f64::NEG_INFINITY,
                    false => hide,
                })
                .collect();
            Mask::Float(Array::new(data, &shape))
        }
    });
    let inputs = Inputs { element, q, k, v, mask, past_key, past_value, positions };
    let name = format!("{n:03}_boundary_{kind}_{batch}x{q_heads}_{kv_heads}x{queries}_{past}_{keys}");
    let mut case = AttentionCase { name, attention, inputs, painted: false };
    paint(r, &mut case);
    case
}

#[test]
fn chunks_end_inside_holes_pasts_and_rings() {
    let variants = Variant::all();
    for n in 0..96 {
        let case = case(77, n);
        check(&case, Ways::All, &variants);
        for &variant in &variants {
            match case.inputs.element {
                Float::F32 => check_ranks::<f32>(variant, &case),
                Float::F16 => check_ranks::<f16>(variant, &case),
                Float::Bf16 => check_ranks::<bf16>(variant, &case),
            }
        }
    }
}

/// Checks that a call of rank 3 has the bits of the same call in rank 4.
fn check_ranks<T: Element>(variant: Variant, case: &AttentionCase) {
    let counts = (case.attention.q_num_heads, case.attention.kv_num_heads);
    let (Some(query_heads), Some(kv_heads)) = counts else { return };
    let flat = Operands::<T>::new(&case.inputs).unwrap();
    let op: Attention = operator(&case.attention, &case.inputs.positions).unwrap();
    let is_ring = matches!(case.inputs.positions, Positions::Ring(_));
    let scores = Scores::from_mode(case.attention.qk_matmul_output_mode).unwrap();
    let op = if is_ring { op } else { op.scores(scores) };
    let mut by_head = flat.clone();
    by_head.query = flat.query.by_head(query_heads as usize);
    by_head.key = flat.key.by_head(kv_heads as usize);
    by_head.value = flat.value.by_head(kv_heads as usize);
    let (a, b) = (flat.run_as(variant, &op).unwrap(), by_head.run_as(variant, &op).unwrap());
    let [batch, heads, queries, size] =
        [by_head.query.shape[0], by_head.query.shape[1], by_head.query.shape[2], by_head.value.shape[3]];
    let y = Tensor { shape: vec![batch, heads, queries, size], data: b.y };
    assert!(bits(&a.y) == bits(&y.flat().data), "{} {variant:?}", case.name);
    assert!(a.scores.as_deref().map(bits) == b.scores.as_deref().map(bits), "{} {variant:?}", case.name);
}
