//! Numbers of the element types: how they are read, rounded and cast.
//!
//! Floats are computed in 64 bits. After every operator they are rounded to their type, to nearest with ties
//! to even. Numbers beyond the range of the type become infinite. A runtime that computes in 32 bits gets the
//! same results for +, -, *, / and the square root. 16-bit floats are rounded to 32 bits first, as runtimes
//! do.

use half::{bf16, f16};
use kvscatter::ElementType;

use super::FoldError;
use super::shapes::signed;
use super::values::{Elements, NumberKind, Uncomputed, Values, int_range};
use crate::OnnxError;

/// Rounds a float to the precision and range of its type.
pub(crate) fn round(element: ElementType, value: f64) -> f64 {
    match element {
        ElementType::Float32 => round_to_f32(value).into(),
        ElementType::Float16 => f16::from_f32(round_to_f32(value)).to_f64(),
        ElementType::BFloat16 => bf16::from_f32(round_to_f32(value)).to_f64(),
        _ => value,
    }
}

/// Rounds a float to float32.
#[expect(clippy::as_conversions, reason = "the function rounds")]
pub(crate) fn round_to_f32(value: f64) -> f32 {
    value as f32
}

/// Checks that an integer fits its type.
///
/// # Errors
/// Returns [`FoldError::Overflow`] if the integer does not fit the type, or is `None` because the arithmetic
/// overflowed 64 bits.
pub(crate) fn fit(element: ElementType, value: Option<i64>) -> Result<i64, OnnxError> {
    let (min, max) = int_range(element).unwrap_or((i64::MIN, i64::MAX));
    value.filter(|value| (min..=max).contains(value)).ok_or_else(|| FoldError::Overflow { element }.into())
}

/// Creates integers that fit their type, as [`fit`] checks.
pub(super) fn fitted(
    element: ElementType,
    ints: impl Iterator<Item = Option<i64>>,
) -> Result<Values, OnnxError> {
    ints.map(|int| fit(element, int)).collect::<Result<_, _>>().map(Values::Ints)
}

/// Creates floats that are rounded to their type.
pub(super) fn rounded(element: ElementType, floats: impl Iterator<Item = f64>) -> Values {
    Values::Floats(floats.map(|float| round(element, float)).collect())
}

/// Casts values to another type. They are unknown if the type has no [`NumberKind`].
///
/// Floats truncate to integers, and integers wrap to narrower ones. Every value other than zero becomes true,
/// including NaN.
///
/// # Errors
/// * Returns [`FoldError::Cast`] for a float that does not truncate to a value of the integer type. ONNX does
///   not define the result.
/// * Returns [`FoldError::Cast`] for a negative integer as uint64, because only the lower half of uint64 is
///   supported.
pub(super) fn cast(values: &Values, to: ElementType) -> Elements {
    Ok(match NumberKind::from_element(to).ok_or(Uncomputed::Unknown)? {
        NumberKind::Int => {
            let ints: Result<_, OnnxError> = match values {
                Values::Ints(from) => from.iter().map(|&value| wrap(to, value)).collect(),
                Values::Floats(from) => from.iter().map(|&value| float_to_int(to, value)).collect(),
                Values::Bools(from) => Ok(from.iter().map(|&value| value.into()).collect()),
            };
            Values::Ints(ints?)
        }
        NumberKind::Float => Values::Floats(match values {
            Values::Ints(from) => from.iter().map(|&value| int_to_float(to, value)).collect(),
            Values::Floats(from) => from.iter().map(|&value| round(to, value)).collect(),
            Values::Bools(from) => from.iter().map(|&value| f64::from(u8::from(value))).collect(),
        }),
        NumberKind::Bool => Values::Bools(match values {
            Values::Ints(from) => from.iter().map(|&value| value != 0).collect(),
            Values::Floats(from) => from.iter().map(|&value| value != 0.0).collect(),
            Values::Bools(from) => from.clone(),
        }),
    })
}

/// Reads the values from the bytes of a tensor. Returns `None` if its type has no [`NumberKind`], or if a
/// value is beyond the range of int64.
pub(crate) fn decode(element: ElementType, bytes: &[u8], count: usize) -> Option<Values> {
    fn ints<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> i64) -> Option<Values> {
        Some(Values::Ints(bytes.as_chunks().0.iter().map(|&chunk| read(chunk)).collect()))
    }
    fn floats<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Option<Values> {
        Some(Values::Floats(bytes.as_chunks().0.iter().map(|&chunk| read(chunk)).collect()))
    }
    let nibbles = || bytes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]).take(count);
    match element {
        ElementType::Bool => Some(Values::Bools(bytes.iter().map(|&byte| byte != 0).collect())),
        ElementType::Int64 => ints(bytes, i64::from_le_bytes),
        ElementType::Int32 => ints(bytes, |chunk| i32::from_le_bytes(chunk).into()),
        ElementType::Int16 => ints(bytes, |chunk| i16::from_le_bytes(chunk).into()),
        ElementType::Int8 => ints(bytes, |chunk| i8::from_le_bytes(chunk).into()),
        ElementType::UInt32 => ints(bytes, |chunk| u32::from_le_bytes(chunk).into()),
        ElementType::UInt16 => ints(bytes, |chunk| u16::from_le_bytes(chunk).into()),
        ElementType::UInt8 => ints(bytes, |chunk| u8::from_le_bytes(chunk).into()),
        ElementType::UInt64 => {
            let values = bytes.as_chunks().0.iter();
            let values: Result<_, _> =
                values.map(|&chunk| i64::try_from(u64::from_le_bytes(chunk))).collect();
            values.ok().map(Values::Ints)
        }
        ElementType::UInt4 => Some(Values::Ints(nibbles().map(i64::from).collect())),
        ElementType::Int4 => {
            let values = nibbles()
                .map(i64::from)
                .map(|value| if value > 7 { value.saturating_sub(16) } else { value });
            Some(Values::Ints(values.collect()))
        }
        ElementType::Float64 => floats(bytes, f64::from_le_bytes),
        ElementType::Float32 => floats(bytes, |chunk| f32::from_le_bytes(chunk).into()),
        ElementType::Float16 => floats(bytes, |chunk| f16::from_le_bytes(chunk).to_f64()),
        ElementType::BFloat16 => floats(bytes, |chunk| bf16::from_le_bytes(chunk).to_f64()),
        _ => None,
    }
}

/// Returns the low bits of an integer, interpreted as the type.
///
/// # Errors
/// Returns [`FoldError::Cast`] for a negative number as uint64, because only the lower half of uint64 is
/// supported.
fn wrap(element: ElementType, value: i64) -> Result<i64, OnnxError> {
    let (min, max) = int_range(element).unwrap_or((i64::MIN, i64::MAX));
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    let [value_wide, min, max] = [value, min, max].map(i128::from);
    let count = max.saturating_sub(min).saturating_add(1);
    let low = value_wide.saturating_sub(min).checked_rem_euclid(count).map(|low| low.saturating_add(min));
    low.filter(|_| element != ElementType::UInt64)
        .and_then(|low| i64::try_from(low).ok())
        .ok_or_else(|| FoldError::Cast { value: value.to_string(), element }.into())
}

#[expect(clippy::as_conversions, reason = "the function rounds, once, by the type's own width")]
pub(crate) fn int_to_float(element: ElementType, value: i64) -> f64 {
    match element {
        ElementType::Float64 => value as f64,
        _ => round(element, f64::from(value as f32)),
    }
}

#[expect(clippy::as_conversions, reason = "the value is a whole number of the 64-bit range")]
pub(crate) fn float_to_int(element: ElementType, value: f64) -> Result<i64, OnnxError> {
    let refused = || FoldError::Cast { value: value.to_string(), element };
    // Casting minus infinity gives this number on x86 and ARM, and other numbers out of range differ. T5 casts the
    // logarithm of distance 0, and then does not use the result.
    if (element, value) == (ElementType::Int64, f64::NEG_INFINITY) {
        return Ok(i64::MIN);
    }
    let whole = value.trunc();
    // 2^63 is exactly representable as a float, but the largest int64 is not.
    let limit = 9_223_372_036_854_775_808.0;
    if !(-limit..limit).contains(&whole) {
        return Err(refused().into());
    }
    fit(element, Some(whole as i64)).map_err(|_| refused().into())
}

/// Returns the most negative finite number of a type.
pub(crate) fn lowest(element: ElementType) -> Option<f64> {
    match element {
        ElementType::Float32 => Some(f64::from(f32::MIN)),
        ElementType::Float16 => Some(-65504.0),
        ElementType::BFloat16 => Some(-3.389_531_389_251_535_5e38),
        ElementType::Float64 => Some(f64::MIN),
        _ => None,
    }
}

/// Converts a count to a float.
pub(crate) fn to_float(count: usize) -> f64 {
    int_to_float(ElementType::Float64, signed(count))
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::decode;
    use crate::fold::Values;

    #[test]
    fn four_bit_integers_are_two_to_a_byte() {
        assert_eq!(decode(ElementType::Int4, &[0x8F, 0x07], 3), Some(Values::Ints(vec![-1, -8, 7])));
        assert_eq!(decode(ElementType::UInt4, &[0x8F], 2), Some(Values::Ints(vec![15, 8])));
        assert_eq!(decode(ElementType::UInt64, &[0xFF; 8], 1), None);
    }
}
