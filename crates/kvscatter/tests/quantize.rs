//! Rows as codes and scales, compared with the oracle in float64, and special rows.

use kvscatter::quantize::{
    MIN_SCALE, SCALE_FACTOR, dequantize_row, largest_error, quantize_row, rotate_row, rotation_block,
    rotation_element,
};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Error, PlannedWrite, write_all};
use kvscatter_oracle::attention::Float;
use kvscatter_oracle::quantized::{Row, rotated};

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

/// Compares what is stored and read of a row with the oracle, and the error with its bound.
#[track_caller]
fn check_row(row: &[f32]) {
    let given: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
    let expected = Row::quantize(&given);
    let (mut codes, mut read) = (vec![99; row.len()], vec![f32::INFINITY; row.len()]);
    let scale = quantize_row(row, &mut codes);
    dequantize_row(&codes, scale, &mut read);
    let bits = |x: f64| if x.is_nan() { f32::NAN.to_bits() } else { (x as f32).to_bits() };
    assert_eq!(bits(scale.into()), bits(expected.scale), "{row:?}");
    assert!(
        codes.iter().map(|code| f64::from(*code)).eq(expected.codes.iter().copied()),
        "{row:?} {codes:?}"
    );
    assert!(read.iter().zip(expected.read()).all(|(got, want)| bits((*got).into()) == bits(want)), "{row:?}");
    for (x, code) in given.iter().zip(codes) {
        let error = (f64::from(code) * f64::from(scale) - x).abs();
        let bound = largest_error(ElementType::Int8, *x, scale.into());
        let is_within = bound == Some(expected.bound()) && error <= expected.bound();
        assert!(scale.is_nan() || is_within, "{x} {code} {scale}");
    }
}

#[test]
fn rows_are_those_of_the_oracle() {
    for seed in 0..2000 {
        check_row(&numbers(1 + seed as usize % 130, seed));
        let power = 2_f32.powi(seed as i32 % 240 - 130);
        check_row(&numbers(64, seed).iter().map(|x| x * power).collect::<Vec<_>>());
    }
}

#[test]
fn rows_of_any_bits_are_those_of_the_oracle() {
    // Every exponent and sign, beside numbers of the same magnitude and of others.
    let bits = |n: u32| f32::from_bits(n.wrapping_mul(2_654_435_761) ^ (n << 7));
    for n in 0..30_000 {
        check_row(&[bits(n)]);
        check_row(&[bits(n), bits(n).mul_add(0.5, bits(n + 1)), bits(n) * 0.996]);
        check_row(&core::array::from_fn::<_, 5, _>(|i| bits(5 * n + i as u32)));
    }
}

#[test]
fn rotated_rows_are_those_of_the_oracle() {
    for size in [0, 1, 8, 16, 24, 64, 65, 72, 80, 96, 128, 256] {
        let row = numbers(size, size as u32);
        let mut got = row.clone();
        rotate_row(&mut got);
        let given: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        let length = given.iter().map(|x| x * x).sum::<f64>().sqrt();
        let close = |(got, want): (&f32, f64)| (f64::from(*got) - want).abs() <= 1e-6 * length;
        assert!(got.iter().zip(rotated(&given)).all(close), "{size}");
        assert_eq!(got == row, rotation_block(size).is_none());
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
fn blocks_are_the_largest_power_of_two_from_16() {
    for (size, block) in [(16, 16), (64, 64), (256, 256), (80, 16), (96, 32), (128, 128)] {
        assert_eq!(rotation_block(size), Some(block));
    }
    assert!([0, 1, 8, 24, 65, 72].iter().all(|size| rotation_block(*size).is_none()));
}

#[test]
fn elements_of_the_rotation_are_those_of_the_oracle() {
    for size in [1, 8, 16, 32, 48, 64, 80, 256] {
        for row in 0..size {
            let mut unit = vec![0.0; size];
            unit[row] = 1.0;
            let expected: Vec<f32> = rotated(&unit).iter().map(|x| *x as f32).collect();
            let got: Vec<f32> = (0..size).map(|column| rotation_element(size, row, column)).collect();
            assert_eq!(got, expected, "{size} {row}");
        }
    }
}

#[test]
fn rounded_numbers_differ_by_at_most_the_largest_error() {
    let types = [
        (ElementType::Float16, Float::F16, 11, -25),
        (ElementType::BFloat16, Float::Bf16, 8, -134),
        (ElementType::Float32, Float::F32, 24, -150),
    ];
    for (element, float, digits, least) in types {
        for power in least - 2..=15 {
            let first = 2_f64.powi(power);
            let tie = first + 2_f64.powi(least.max(power - digits));
            let numbers = (0..4096).map(|n| first * (1.0 + f64::from(n) / 4096.0)).chain([tie]);
            let parts = numbers.filter_map(|number| {
                let bound = largest_error(element, -number, 0.0)?;
                Some((float.round(number) - number).abs() / bound)
            });
            let worst = parts.fold(0.0, f64::max);
            assert!(worst <= 1.0, "{element} 2^{power}: {worst}");
            assert!(worst > 0.99 || power < least, "{element} 2^{power}: {worst}");
        }
    }
    assert!(largest_error(ElementType::Float16, -65504.0, 0.0).is_some());
    assert!(largest_error(ElementType::Float16, 65505.0, 0.0).is_none());
    assert!(largest_error(ElementType::Float64, 1.0, 1.0).is_none());
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
