//! Values of the element types of caches: canaries, NaN, and a test for finite values.

use half::{bf16, f16};
use kvscatter::ElementType;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// The bits of 1, 1/2 and a NaN of an 8-bit float. Subtracting one unit of the exponent field halves a
/// number.
struct Float8 {
    one: u8,
    half: u8,
    nan: u8,
}

fn float8(element: ElementType) -> Option<Float8> {
    Some(match element {
        ElementType::Float8E4M3Fn => Float8 { one: 0x38, half: 0x30, nan: 0x7F },
        ElementType::Float8E4M3FnUz => Float8 { one: 0x40, half: 0x38, nan: 0x80 },
        ElementType::Float8E5M2 => Float8 { one: 0x3C, half: 0x38, nan: 0x7F },
        ElementType::Float8E5M2FnUz => Float8 { one: 0x40, half: 0x3C, nan: 0x80 },
        _ => return None,
    })
}

/// Returns `true` if caches of this type have canaries. These are the types that attention computes with or
/// dequantises.
pub(crate) fn can_paint(element: ElementType) -> bool {
    let plain = [
        ElementType::Float64,
        ElementType::Float32,
        ElementType::Float16,
        ElementType::BFloat16,
        ElementType::Int8,
        ElementType::UInt8,
        ElementType::Int16,
        ElementType::Int32,
    ];
    plain.contains(&element) || float8(element).is_some()
}

/// Fills bytes with finite values of at most 1 in magnitude, different from row to row.
pub(crate) fn paint(element: ElementType, bytes: &mut [u8], random: &mut Pcg64Mcg) {
    let width = element.bits().unwrap_or(8).div_ceil(8);
    for target in bytes.chunks_exact_mut(width) {
        let bits = random.next_u64();
        // A 32-bit float represents these 24 bits exactly. The result is between -1 and 1.
        let unit = f64::from(u32::try_from(bits >> 40).unwrap_or_default()) / f64::from(1_u32 << 23) - 1.0;
        #[expect(clippy::cast_possible_truncation, reason = "the value is meant to be rounded")]
        let single = unit as f32;
        let step = i8::try_from(bits % 3).unwrap_or_default();
        let value: &[u8] = match element {
            ElementType::Float64 => &unit.to_le_bytes(),
            ElementType::Float32 => &single.to_le_bytes(),
            ElementType::Float16 => &f16::from_f32(single).to_le_bytes(),
            ElementType::BFloat16 => &bf16::from_f32(single).to_le_bytes(),
            ElementType::Int8 => &(step - 1).to_le_bytes(),
            ElementType::Int16 => &(i16::from(step) - 1).to_le_bytes(),
            ElementType::Int32 => &(i32::from(step) - 1).to_le_bytes(),
            ElementType::UInt8 => &[u8::from(bits.is_multiple_of(2))],
            _ => match float8(element) {
                Some(float) => {
                    let magnitude = if bits.is_multiple_of(2) { float.one } else { float.half };
                    &[magnitude | if bits & 2 == 0 { 0 } else { 0x80 }]
                }
                None => &[],
            },
        };
        target.get_mut(..value.len()).into_iter().for_each(|target| target.copy_from_slice(value));
    }
}

/// Fills bytes with NaN. If the type has no NaN, changes nothing and returns `false`.
pub(crate) fn fill_nan(element: ElementType, bytes: &mut [u8]) -> bool {
    let nan: &[u8] = match element {
        ElementType::Float64 => &f64::NAN.to_le_bytes(),
        ElementType::Float32 => &f32::NAN.to_le_bytes(),
        ElementType::Float16 => &f16::NAN.to_le_bytes(),
        ElementType::BFloat16 => &bf16::NAN.to_le_bytes(),
        _ => match float8(element) {
            Some(float) => &[float.nan],
            None => return false,
        },
    };
    bytes.chunks_exact_mut(nan.len()).for_each(|target| target.copy_from_slice(nan));
    true
}

/// Returns `true` if every value is finite. This is always the case for types without NaN and infinities.
pub(crate) fn are_finite(element: ElementType, bytes: &[u8]) -> bool {
    // All bits of the exponent are set in an infinity and in a NaN.
    let special = |wide: u16, mask: u16| wide & mask == mask;
    match element {
        ElementType::Float64 => {
            bytes.as_chunks().0.iter().all(|&chunk| f64::from_le_bytes(chunk).is_finite())
        }
        ElementType::Float32 => {
            bytes.as_chunks().0.iter().all(|&chunk| f32::from_le_bytes(chunk).is_finite())
        }
        ElementType::Float16 => {
            bytes.as_chunks().0.iter().all(|&chunk| !special(u16::from_le_bytes(chunk), 0x7C00))
        }
        ElementType::BFloat16 => {
            bytes.as_chunks().0.iter().all(|&chunk| !special(u16::from_le_bytes(chunk), 0x7F80))
        }
        ElementType::Float8E4M3Fn => bytes.iter().all(|byte| byte & 0x7F != 0x7F),
        ElementType::Float8E5M2 => bytes.iter().all(|byte| byte & 0x7C != 0x7C),
        ElementType::Float8E4M3FnUz | ElementType::Float8E5M2FnUz => bytes.iter().all(|byte| *byte != 0x80),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter_session::to_f32;
    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::SeedableRng;

    use super::{are_finite, can_paint, fill_nan, paint};

    #[test]
    fn canaries_are_finite_at_most_one_and_differ_from_row_to_row() {
        for element in ElementType::ALL.into_iter().filter(|element| can_paint(*element)) {
            let mut bytes = vec![0; 1 << 12];
            paint(element, &mut bytes, &mut Pcg64Mcg::seed_from_u64(1));
            assert!(are_finite(element, &bytes), "{element}");
            let rows: std::collections::BTreeSet<&[u8]> =
                bytes.chunks(64 * element.bits().unwrap() / 8).collect();
            assert_eq!(rows.len(), (1 << 12) * 8 / 64 / element.bits().unwrap(), "{element}");
            for value in to_f32(element, &bytes).unwrap_or_default().iter() {
                assert!(value.abs() <= 1.0, "{element} {value}");
            }
        }
    }

    #[test]
    fn nan_is_found_wherever_it_stands() {
        for element in ElementType::ALL.into_iter().filter(|element| can_paint(*element)) {
            let width = element.bits().unwrap() / 8;
            let mut bytes = vec![0; 16 * width];
            if fill_nan(element, &mut bytes[5 * width..6 * width]) {
                assert!(!are_finite(element, &bytes), "{element}");
                assert!(are_finite(element, &bytes[6 * width..]), "{element}");
            }
        }
    }

    #[test]
    fn infinities_are_not_finite() {
        assert!(!are_finite(ElementType::Float16, &half::f16::INFINITY.to_le_bytes()));
        assert!(!are_finite(ElementType::BFloat16, &half::bf16::NEG_INFINITY.to_le_bytes()));
        assert!(!are_finite(ElementType::Float32, &f32::INFINITY.to_le_bytes()));
    }
}
