//! Rows as codes and scales, compared with the rule in float64, and special rows.

use kvscatter::quantize::{
    MIN_SCALE, SCALE_FACTOR, dequantize_row, inverse_root, quantize_row, rotate_row, rotation_block,
};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Error, PlannedWrite, write_all};

/// Returns numbers of many magnitudes.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let number = |_| (next() as f32 / 8_388_608.0 - 1.0) * 2_f32.powi(next() as i32 % 8);
    (0..count).map(number).collect()
}

#[test]
fn codes_are_those_of_the_rule_in_float64_division() {
    for seed in 0..2000 {
        let row = numbers(64, seed);
        let mut codes = [99; 64];
        let scale = quantize_row(&row, &mut codes);
        let most = row.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert_eq!(scale, most * SCALE_FACTOR);
        for (x, code) in row.iter().zip(codes) {
            // A quotient of float32 is rounded once, so the rule is stated with it.
            assert_eq!(f64::from(code), f64::from(x / scale).round_ties_even(), "{x} / {scale}");
            let error = (f64::from(code) * f64::from(scale) - f64::from(*x)).abs();
            assert!(error <= f64::from(scale) * (0.5 + 2_f64.powi(-16)), "{x} {code} {scale}");
        }
        let mut read = [f32::NAN; 64];
        dequantize_row(&codes, scale, &mut read);
        assert!(read.iter().zip(codes).all(|(x, code)| *x == f32::from(code) * scale));
    }
}

#[test]
fn ties_go_to_even_codes() {
    let mut row = [0.0; 64];
    for (n, x) in row.iter_mut().enumerate() {
        *x = n as f32 - 31.5;
    }
    row[0] = 127.0;
    let mut codes = [0; 64];
    assert_eq!(quantize_row(&row, &mut codes), 1.0);
    for (x, code) in row.iter().zip(codes) {
        assert_eq!(f32::from(code), x.round_ties_even());
    }
}

#[test]
fn special_rows_have_the_scales_and_codes_of_the_rule() {
    let mut codes = [1; 4];
    for (row, scale, expected) in [
        ([0.0; 4], MIN_SCALE, [0; 4]),
        ([-0.0; 4], MIN_SCALE, [0; 4]),
        ([1e-40; 4], MIN_SCALE, [0; 4]),
        ([2_f32.powi(-100), 0.0, -1.5 * 2_f32.powi(-100), 0.0], MIN_SCALE, [1, 0, -2, 0]),
        ([f32::MAX, -f32::MAX, 0.0, 1.0], f32::MAX * SCALE_FACTOR, [127, -127, 0, 0]),
    ] {
        assert_eq!(quantize_row(&row, &mut codes), scale, "{row:?}");
        assert_eq!(codes, expected, "{row:?}");
    }
    for number in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in 0..4 {
            let mut row = [1.0; 4];
            row[at] = number;
            codes = [7; 4];
            assert!(quantize_row(&row, &mut codes).is_nan());
            assert_eq!(codes, [0; 4]);
        }
    }
    assert_eq!(MIN_SCALE, 2_f32.powi(-100));
    assert_eq!(quantize_row(&[], &mut []), MIN_SCALE);
}

#[test]
fn rotation_is_a_product_with_the_hadamard_matrix() {
    for (size, block) in [(64, 64), (256, 256), (80, 16), (96, 32), (128, 128)] {
        assert_eq!(rotation_block(size), Some(block));
        let row = numbers(size, size as u32);
        let mut rotated = row.clone();
        rotate_row(&mut rotated);
        let length = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for (at, x) in rotated.iter().enumerate() {
            let first = at / block * block;
            let sum = (0..block).map(|i| {
                let sign = if (i & (at - first)).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                sign * f64::from(row[first + i])
            });
            let expected = sum.sum::<f64>() / (block as f64).sqrt();
            assert!((expected - f64::from(*x)).abs() <= 1e-6 * length(&row), "{size} {at}");
        }
        rotate_row(&mut rotated);
        assert!(rotated.iter().zip(&row).all(|(a, b)| f64::from((a - b).abs()) <= 1e-6 * length(&row)));
        assert_eq!(inverse_root(block), (1.0 / (block as f64).sqrt()) as f32);
    }
    for size in [0, 1, 8, 24, 65, 72] {
        assert_eq!(rotation_block(size), None);
        let mut row = numbers(size, 1);
        rotate_row(&mut row);
        assert_eq!(row, numbers(size, 1));
    }
}

#[test]
fn write_all_writes_nothing_if_one_write_does_not_fit() {
    let prepare =
        |element, size| TensorScatter::new().prepare(element, &[1, 4, size], &[1, 1, size]).unwrap();
    let (codes, scales) = (prepare(ElementType::Int8, 8), prepare(ElementType::Float32, 1));
    let (mut code_cache, mut scale_cache) = ([9_u8; 32], [9_u8; 16]);
    let mut write = |scale: &[u8]| {
        let writes = &mut [
            PlannedWrite { plan: codes.plan(&[2]).unwrap(), cache: &mut code_cache, update: &[1; 8] },
            PlannedWrite { plan: scales.plan(&[2]).unwrap(), cache: &mut scale_cache, update: scale },
        ];
        let result = write_all(writes);
        (result, code_cache, scale_cache)
    };
    let (refused, codes, scales) = write(&[1; 3]);
    assert!(matches!(refused, Err(Error::BufferLength { pair: 1, got: 3, expected: 4, .. })), "{refused:?}");
    assert_eq!((codes, scales), ([9; 32], [9; 16]));
    let (written, codes, scales) = write(&[1; 4]);
    assert_eq!(written, Ok(()));
    let expected = |range: core::ops::Range<usize>, at| if range.contains(&at) { 1 } else { 9 };
    assert_eq!(codes, core::array::from_fn(|at| expected(16..24, at)));
    assert_eq!(scales, core::array::from_fn(|at| expected(8..12, at)));
}
