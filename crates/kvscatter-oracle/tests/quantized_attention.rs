//! Attention over codes and scales is attention over what they stand for.

use kvscatter_oracle::attention::{Array, Attention, Float, Inputs, Mask, Positions, Scales};

/// Returns numbers without a pattern.
fn numbers(shape: [usize; 4], seed: u32) -> Array<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from((state >> 8) as f32 / 8_388_608.0 - 1.0)
    };
    Array::new((0..shape.iter().product()).map(|_| next()).collect(), &shape)
}

fn inputs() -> Inputs {
    let (rows, positions) = ([2, 2, 5, 16], Positions::Lengths(vec![3, 5]));
    let (k, v, q) = (numbers(rows, 1), numbers(rows, 2), numbers([2, 4, 2, 16], 3));
    Inputs { element: Float::F32, q, k, v, mask: None, past_key: None, past_value: None, positions }
}

/// Returns the products of codes and scales.
fn products([codes, scales]: &[Array<f64>; 2]) -> Array<f64> {
    let size = codes.shape[3];
    let product = |(at, code): (usize, &f64)| code * scales.data[at / size];
    Array::new(codes.data.iter().enumerate().map(product).collect(), &codes.shape)
}

#[test]
fn scales_are_applied_to_scores_and_weights() {
    let mask = Mask::Float(Array::new(vec![0.5, -1.0, f64::NEG_INFINITY, 0.0, 2.0], &[1, 5]));
    for softcap in [0.0, 0.7] {
        for mode in 0..4 {
            for (mask, positions) in [
                (None, Positions::Lengths(vec![3, 5])),
                (Some(mask.clone()), Positions::Full),
                (None, Positions::Ring(vec![7, 2])),
            ] {
                let attention = Attention { softcap, qk_matmul_output_mode: mode, ..Attention::default() };
                let given = Inputs { mask, positions, ..inputs() };
                let (keys, values) = (Scales::quantize(&given.k), Scales::quantize(&given.v));
                let plain = Inputs { k: products(&keys), v: products(&values), ..given.clone() };
                let ([k, key], [v, value]) = (keys, values);
                let codes = Inputs { k, v, ..given };
                let got = attention.run_scaled(&codes, &Scales { key, value }).unwrap();
                let want = attention.run(&plain).unwrap();
                for (got, want) in [(&got.y, &want.y), (&got.qk_matmul_output, &want.qk_matmul_output)] {
                    let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-12;
                    assert!(got.data.iter().zip(&want.data).all(close), "{got:?} {want:?}");
                }
            }
        }
    }
}

#[test]
fn scales_of_hidden_slots_have_no_influence() {
    let given = inputs();
    let ([k, key], [v, value]) = (Scales::quantize(&given.k), Scales::quantize(&given.v));
    let codes = Inputs { k, v, ..given };
    let mut scales = Scales { key, value };
    let want = Attention::default().run_scaled(&codes, &scales).unwrap().y;
    for head in 0..2 {
        for hidden in [3, 4] {
            scales.key.data[head * 5 + hidden] = f64::NAN;
            scales.value.data[head * 5 + hidden] = f64::NAN;
        }
    }
    assert_eq!(Attention::default().run_scaled(&codes, &scales).unwrap().y, want);
    scales.value.data[2] = f64::NAN; // the first head of the first sample
    let seen = Attention::default().run_scaled(&codes, &scales).unwrap().y;
    assert_eq!(seen.data.iter().filter(|x| x.is_nan()).count(), 2 * 2 * 16, "two query heads of two queries");
}
