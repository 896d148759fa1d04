//! The values of floats in ten formats, from 4 to 64 bits.

use kvscatter::ElementType;

/// The format of a binary float: its optional sign, its exponent, its mantissa, and the codes that are not
/// numbers.
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    specials: Specials,
}

/// The codes that are not numbers.
enum Specials {
    /// The largest exponent is infinity if the mantissa is 0, and NaN otherwise.
    Ieee,
    /// Only the largest code is NaN, of either sign.
    Largest,
    /// Only the code of negative zero is NaN.
    NegativeZero,
    /// Every code is a number.
    None,
}

/// Formats a number with the fewest digits that distinguish it in its format. Returns `None` if [`value`]
/// does.
pub(super) fn text(element: ElementType, bits: u128) -> Option<String> {
    let value = value(element, bits)?;
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "the value was an f32")]
    let narrow = value as f32;
    Some(if element == ElementType::Float32 { format!("{narrow:?}") } else { format!("{value:?}") })
}

/// Returns the value of the low bits, or `None` if the type is complex or not a float.
pub(super) fn value(element: ElementType, bits: u128) -> Option<f64> {
    let low64 = u64::try_from(bits & u128::from(u64::MAX)).ok()?;
    let low32 = u32::try_from(low64 & u64::from(u32::MAX)).ok()?;
    match element {
        ElementType::Float64 => Some(f64::from_bits(low64)),
        ElementType::Float32 => Some(f64::from(f32::from_bits(low32))),
        // This format has only an exponent. It has no sign and no zero.
        ElementType::Float8E8M0 => Some(match low32 & 0xff {
            0xff => f64::NAN,
            exponent => 2_f64.powi(i32::try_from(exponent).ok()?.checked_sub(127)?),
        }),
        _ => format(element)?.value(low32),
    }
}

fn format(element: ElementType) -> Option<Format> {
    let (exponent_bits, mantissa_bits, bias, specials) = match element {
        ElementType::Float16 => (5, 10, 15, Specials::Ieee),
        ElementType::BFloat16 => (8, 7, 127, Specials::Ieee),
        ElementType::Float8E5M2 => (5, 2, 15, Specials::Ieee),
        ElementType::Float8E4M3Fn => (4, 3, 7, Specials::Largest),
        ElementType::Float8E4M3FnUz => (4, 3, 8, Specials::NegativeZero),
        ElementType::Float8E5M2FnUz => (5, 2, 16, Specials::NegativeZero),
        ElementType::Float4E2M1 => (2, 1, 1, Specials::None),
        _ => return None,
    };
    Some(Format { exponent_bits, mantissa_bits, bias, specials })
}

impl Format {
    fn value(&self, bits: u32) -> Option<f64> {
        let mask = |width: u32| 1_u32.checked_shl(width).map(|power| power.wrapping_sub(1));
        let mantissa = bits & mask(self.mantissa_bits)?;
        let exponent = (bits >> self.mantissa_bits) & mask(self.exponent_bits)?;
        let negative = (bits >> self.mantissa_bits >> self.exponent_bits) & 1 == 1;
        let (last_exponent, last_mantissa) = (mask(self.exponent_bits)?, mask(self.mantissa_bits)?);
        let sign = if negative { -1.0 } else { 1.0 };
        match self.specials {
            Specials::Ieee if exponent == last_exponent && mantissa == 0 => {
                return Some(sign * f64::INFINITY);
            }
            Specials::Ieee if exponent == last_exponent => return Some(f64::NAN),
            Specials::Largest if exponent == last_exponent && mantissa == last_mantissa => {
                return Some(f64::NAN);
            }
            Specials::NegativeZero if negative && exponent == 0 && mantissa == 0 => return Some(f64::NAN),
            _ => {}
        }
        // Exponent 0 means no leading 1, and the same scale as exponent 1.
        let leading = f64::from(u8::from(exponent != 0));
        let fraction = f64::from(mantissa) / f64::from(1_u32.checked_shl(self.mantissa_bits)?);
        let scale = i32::try_from(exponent.max(1)).ok()?.checked_sub(self.bias)?;
        Some(sign * (leading + fraction) * 2_f64.powi(scale))
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use kvscatter::ElementType;

    use super::value;

    #[test]
    fn the_16_bit_formats_agree_with_half() {
        for bits in 0..=u16::MAX {
            for (element, expected) in [
                (ElementType::Float16, f16::from_bits(bits).to_f64()),
                (ElementType::BFloat16, bf16::from_bits(bits).to_f64()),
            ] {
                let got = value(element, u128::from(bits)).unwrap();
                let same = got == expected && got.is_sign_negative() == expected.is_sign_negative();
                assert!(
                    same || (got.is_nan() && expected.is_nan()),
                    "{element} {bits:#06x}: {got} {expected}"
                );
            }
        }
    }

    /// Compares every code of every small format with the value that `ml_dtypes` reads.
    #[test]
    fn the_small_formats_agree_with_ml_dtypes() {
        let table = include_str!("../../../../testdata/files/small_floats.csv");
        let mut checked = 0;
        for line in table.lines() {
            let mut cells = line.split(',');
            let element = ElementType::from_name(cells.next().unwrap()).unwrap();
            for (bits, cell) in (0_u128..).zip(cells) {
                let expected: f64 = cell.parse().unwrap();
                let got = value(element, bits).unwrap();
                assert!(
                    got == expected || (got.is_nan() && expected.is_nan()),
                    "{element} {bits:#04x}: {got} {expected}"
                );
                checked += 1;
            }
        }
        assert_eq!(checked, 5 * 256 + 16);
    }
}
