//! The conversions of caches of half types, for every number of these types and every tie between two of them.
//!
//! A stored number differs from a given float32 number `x` by at most `2^-11 |x|` in float16, for
//! `2^-14 <= |x| <= 65504`, and by at most `2^-8 |x|` in bfloat16, for `|x| >= 2^-126`.

use kvscatter_attention as attention;
use kvscatter_oracle::attention::Float;

/// The bits of the largest finite number, and the magnitudes between which the relative error is bounded, by the last
/// number.
struct Half {
    float: Float,
    largest: u16,
    bounded: [f32; 2],
    error: f64,
}

/// Compares the conversion of each number, alone and in a slice, with the oracle's.
fn check<H: attention::Float>(half: &Half, numbers: &[f32]) {
    let mut stored = vec![H::LOWEST; numbers.len()];
    H::narrow(numbers, &mut stored);
    let mut read = vec![0.0; numbers.len()];
    H::widen(&stored, &mut read);
    for ((&x, stored), read) in numbers.iter().zip(stored).zip(read) {
        let want = half.float.round(f64::from(x));
        let bytes = bytemuck::bytes_of(&stored);
        assert_eq!(bytes, bytemuck::bytes_of(&H::of_f32(x)), "{x}");
        if x.is_nan() {
            assert!(read.is_nan() && stored.to_f32().is_nan());
            continue;
        }
        assert_eq!(bytes, half.float.to_le_bytes(want), "{x} is nearest to {want}");
        assert_eq!((f64::from(read), stored.to_f32().to_bits()), (want, read.to_bits()), "{x}");
        let [least, most] = half.bounded;
        if (least..=most).contains(&x.abs()) {
            assert!(
                (want - f64::from(x)).abs() <= half.error * f64::from(x.abs()),
                "{x} is stored as {want}"
            );
        }
    }
}

/// Checks every number of the type, the number halfway to the next one, and both neighbours of that.
fn check_all<H: attention::Float>(half: &Half) {
    let value = |bits: u16| bytemuck::pod_read_unaligned::<H>(&bits.to_le_bytes()).to_f32();
    check::<H>(half, &(0..=u16::MAX).map(value).collect::<Vec<_>>());
    let ties = (0..half.largest).flat_map(|bits| {
        let middle = f64::midpoint(value(bits).into(), value(bits + 1).into()) as f32;
        let near = [middle.next_down(), middle, middle.next_up()];
        near.into_iter().chain(near.map(|x| -x))
    });
    check::<H>(half, &ties.collect::<Vec<_>>());
    // From half a unit above the largest number on, the nearest one is infinity.
    let unit = value(half.largest) - value(half.largest - 1);
    let limit = (f64::from(value(half.largest)) + f64::from(unit) / 2.0) as f32;
    check::<H>(half, &[limit.next_down(), limit, limit.next_up(), f32::MAX, -limit, f32::MIN]);
    assert_eq!(H::of_f32(limit).to_f32(), f32::INFINITY);
}

#[test]
fn float16_is_stored_as_the_nearest_number() {
    let bounded = [2_f32.powi(-14), 65504.0];
    check_all::<half::f16>(&Half { float: Float::F16, largest: 0x7BFF, bounded, error: 2_f64.powi(-11) });
}

#[test]
fn bfloat16_is_stored_as_the_nearest_number() {
    let largest = f32::from_bits(0x7F7F_0000);
    let bounded = [f32::MIN_POSITIVE, largest];
    check_all::<half::bf16>(&Half { float: Float::Bf16, largest: 0x7F7F, bounded, error: 2_f64.powi(-8) });
}
