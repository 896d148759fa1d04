//! Converts logits to float32 and finds the largest.

use std::borrow::Cow;

use half::{bf16, f16};
use kvscatter::ElementType;

/// Converts logits to float32. Returns `None` for a type that is not a floating-point type of at least 16
/// bits.
///
/// The result borrows `bytes` if they are aligned float32 values. Otherwise the values are converted.
#[must_use]
pub fn to_f32(element: ElementType, bytes: &[u8]) -> Option<Cow<'_, [f32]>> {
    if element == ElementType::Float32
        && cfg!(target_endian = "little")
        && let Ok(values) = bytemuck::try_cast_slice(bytes)
    {
        return Some(Cow::Borrowed(values));
    }
    match element {
        ElementType::Float32 => Some(converted(bytes, f32::from_le_bytes)),
        ElementType::Float16 => Some(converted(bytes, |number| f16::from_le_bytes(number).to_f32())),
        ElementType::BFloat16 => Some(converted(bytes, |number| bf16::from_le_bytes(number).to_f32())),
        #[expect(clippy::cast_possible_truncation, reason = "compared at the precision of the others")]
        ElementType::Float64 => Some(converted(bytes, |number| f64::from_le_bytes(number) as f32)),
        _ => None,
    }
}

fn converted<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Cow<'static, [f32]> {
    bytes.as_chunks().0.iter().map(|&number| convert(number)).collect()
}

/// Returns the index of the largest logit. If several are equal, returns the first. If there are no numbers,
/// returns 0.
#[must_use]
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (entry, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (entry, logit);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use half::{bf16, f16};
    use kvscatter::ElementType;

    use super::{argmax, to_f32};

    #[test]
    fn every_type_of_logits_is_read_and_float32_where_it_lies() {
        let values = [1.5_f32, -0.25, f32::INFINITY];
        let cases = [
            (ElementType::Float32, values.map(f32::to_le_bytes).concat()),
            (ElementType::Float64, values.map(|value| f64::from(value).to_le_bytes()).concat()),
            (ElementType::Float16, values.map(|value| f16::from_f32(value).to_le_bytes()).concat()),
            (ElementType::BFloat16, values.map(|value| bf16::from_f32(value).to_le_bytes()).concat()),
        ];
        for (element, bytes) in cases {
            assert_eq!(to_f32(element, &bytes).unwrap(), &values[..], "{element}");
            // The bytes are not aligned.
            let shifted = [&[0], bytes.as_slice()].concat();
            assert_eq!(to_f32(element, &shifted[1..]).unwrap(), &values[..], "{element}, shifted");
        }
        // Two of these have the length of a float32.
        let halves: Vec<u8> =
            [1.5, -0.25].map(f16::from_f32).iter().flat_map(|half| half.to_le_bytes()).collect();
        assert_eq!(to_f32(ElementType::Float16, &halves).unwrap(), &values[..2]);
        let aligned = bytemuck::cast_slice(&values);
        assert!(matches!(to_f32(ElementType::Float32, aligned), Some(Cow::Borrowed(_))));
        assert!(to_f32(ElementType::Int64, aligned).is_none());
    }

    #[test]
    fn the_first_of_the_largest_logits_wins_and_nan_never_does() {
        for (logits, best) in [(&[0.0, 2.0, 2.0][..], 1), (&[f32::NAN, -1.0], 1), (&[f32::NAN], 0), (&[], 0)]
        {
            assert_eq!(argmax(logits), best, "{logits:?}");
        }
    }
}
