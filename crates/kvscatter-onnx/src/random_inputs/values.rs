//! Random values of every type.

use std::ops::RangeInclusive;

use kvscatter::ElementType;
use rand_core::Rng;

use crate::Data;

/// The approximate size of a generated string in memory, in bytes.
pub(super) const STRING_FOOTPRINT: u64 = 64;

/// The words for strings.
const WORDS: [&str; 8] = ["amber", "birch", "cedar", "dune", "ember", "fjord", "gorse", "heath"];

/// Returns int64 values in a range. The range must not be empty unless `count` is 0.
pub(super) fn int64s_within(
    range: &RangeInclusive<i64>,
    count: usize,
    random: &mut impl Rng,
) -> impl Iterator<Item = i64> {
    let (start, end) = (i128::from(*range.start()), i128::from(*range.end()));
    let size = end.saturating_sub(start).saturating_add(1).max(1);
    (0..count).map(move |_| {
        let offset = i128::from(random.next_u64()).checked_rem(size).unwrap_or_default();
        i64::try_from(start.saturating_add(offset)).unwrap_or_default()
    })
}

/// Returns `len` bytes, or strings, of any type.
pub(super) fn any(element: ElementType, len: usize, random: &mut impl Rng) -> Data {
    if element == ElementType::String {
        let word = |_| {
            let draw = random.next_u64();
            let word = usize::try_from(draw % 8).ok().and_then(|index| WORDS.get(index));
            format!("{}{}", word.copied().unwrap_or_default(), (draw >> 8) % 100).into_bytes()
        };
        return Data::Strings((0..len).map(word).collect());
    }
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    match element {
        ElementType::Bool => bytes.iter_mut().for_each(|byte| *byte &= 1),
        // This type has only an exponent. The values are 0.25 and 1.
        ElementType::Float8E8M0 => bytes.iter_mut().for_each(|byte| *byte = 125 | (*byte & 2)),
        _ => {
            if let Some(float) = Float::from_element(element) {
                float.tame(&mut bytes);
            }
        }
    }
    Data::Bytes(bytes)
}

/// The layout of a binary float.
#[derive(Clone, Copy)]
struct Float {
    bits: u32,
    mantissa: u32,
    bias: u64,
}

impl Float {
    /// Returns `None` for types that are not floats, and for `float4e2m1`, whose patterns are all finite.
    fn from_element(element: ElementType) -> Option<Self> {
        let (bits, mantissa, bias) = match element {
            ElementType::Float64 | ElementType::Complex128 => (64, 52, 1023),
            ElementType::Float32 | ElementType::Complex64 => (32, 23, 127),
            ElementType::Float16 => (16, 10, 15),
            ElementType::BFloat16 => (16, 7, 127),
            ElementType::Float8E4M3Fn => (8, 3, 7),
            ElementType::Float8E4M3FnUz => (8, 3, 8),
            ElementType::Float8E5M2 => (8, 2, 15),
            ElementType::Float8E5M2FnUz => (8, 2, 16),
            _ => return None,
        };
        Some(Self { bits, mantissa, bias })
    }

    /// Converts random bits to finite numbers that are short in decimal. The sign and the highest three bits
    /// of the mantissa are kept, and the exponent becomes -2 to 1.
    fn tame(self, bytes: &mut [u8]) {
        match self.bits {
            64 => each(bytes, |bits| self.tamed(u64::from_le_bytes(bits)).to_le_bytes()),
            32 => each(bytes, |bits| narrow(self.tamed(u64::from(u32::from_le_bytes(bits))))),
            16 => each(bytes, |bits| narrow(self.tamed(u64::from(u16::from_le_bytes(bits))))),
            _ => each(bytes, |[bits]| narrow(self.tamed(u64::from(bits)))),
        }
    }

    fn tamed(self, bits: u64) -> u64 {
        let sign = bits & 1_u64.wrapping_shl(self.bits.wrapping_sub(1));
        let low = self.mantissa.saturating_sub(3);
        let fraction =
            (bits >> low & 0b111).wrapping_shl(low) & 1_u64.wrapping_shl(self.mantissa).wrapping_sub(1);
        let exponent = self.bias.wrapping_sub(2).wrapping_add(bits.wrapping_shr(self.mantissa) & 0b11);
        sign | exponent.wrapping_shl(self.mantissa) | fraction
    }
}

fn each<const N: usize>(bytes: &mut [u8], change: impl Fn([u8; N]) -> [u8; N]) {
    for chunk in bytes.as_chunks_mut().0 {
        *chunk = change(*chunk);
    }
}

fn narrow<const N: usize>(bits: u64) -> [u8; N] {
    bits.to_le_bytes().first_chunk().copied().unwrap_or([0; N])
}
