//! How a row becomes int8, and how it is rotated before.

use kvscatter::ElementType;

use crate::fold::round;

/// The name of the pass.
pub(in crate::convert) const PASS: &str = "narrow caches";

/// The float32 nearest to 1/127, which leads from the largest magnitude of a row to its scale.
const SCALE_FACTOR: f32 = 1.0 / 127.0;

/// The smallest scale, 2^-100, so that a row of zeros does not divide by zero.
const MIN_SCALE: f32 = 1.0 / 1.267_650_6e30;

/// The smallest block of a rotation that is worth its cost.
const MIN_BLOCK: usize = 16;

/// Returns [`SCALE_FACTOR`] and [`MIN_SCALE`].
pub(super) fn scale_constants() -> [f64; 2] {
    [SCALE_FACTOR, MIN_SCALE].map(f64::from)
}

/// Returns the size of the blocks of a rotation: the largest power of two that divides the size of a head, or `None` if
/// the blocks would be too small.
pub(super) fn rotation_block(size: usize) -> Option<usize> {
    let block = 1_usize.checked_shl(size.trailing_zeros()).filter(|_| size > 0)?;
    (block >= MIN_BLOCK).then_some(block)
}

/// Returns the matrix of a rotation, `[size, size]` in row-major order: orthonormal Hadamard matrices of Sylvester's
/// form on the diagonal.
pub(super) fn rotation(size: usize, block: usize) -> Vec<f64> {
    let magnitude = crate::fold::to_float(block).sqrt().recip();
    let mask = block.saturating_sub(1);
    let element = |row: usize, column: usize| match row & !mask == column & !mask {
        false => 0.0,
        true if (row & column & mask).count_ones().is_multiple_of(2) => magnitude,
        true => -magnitude,
    };
    (0..size).flat_map(|row| (0..size).map(move |column| element(row, column))).collect()
}

/// A row of codes with its scale.
#[derive(Debug, PartialEq)]
pub(super) struct QuantizedRow {
    pub(super) codes: Vec<f64>,
    pub(super) scale: f64,
}

impl QuantizedRow {
    /// Quantizes a row of float32 numbers, in the arithmetic of float32.
    pub(super) fn new(row: &[f64]) -> Self {
        let [factor, least] = scale_constants();
        let single = |number| round(ElementType::Float32, number);
        let largest = row.iter().fold(0.0_f64, |largest, number| largest.max(number.abs()));
        let scale = single(largest * factor).max(least);
        let codes = row.iter().map(|number| single(number / scale).round_ties_even().clamp(-127.0, 127.0));
        Self { codes: codes.collect(), scale }
    }

    /// Returns the numbers that attention reads.
    pub(super) fn numbers(&self) -> Vec<f64> {
        self.codes.iter().map(|code| round(ElementType::Float32, code * self.scale)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{rotation, rotation_block, scale_constants};

    #[test]
    fn constants_are_those_of_the_rule() {
        let [factor, least] = scale_constants();
        assert_eq!((factor, least), (f64::from(1.0_f32 / 127.0_f32), 2.0_f64.powi(-100)));
    }

    #[test]
    fn blocks_are_powers_of_two_from_16() {
        for (size, block) in [
            (0, None),
            (1, None),
            (8, None),
            (16, Some(16)),
            (24, None),
            (80, Some(16)),
            (96, Some(32)),
            (128, Some(128)),
            (255, None),
            (1 << 63, Some(1 << 63)),
        ] {
            assert_eq!(rotation_block(size), block, "{size}");
        }
    }

    #[test]
    fn a_rotation_is_orthonormal() {
        for (size, block) in [(16, 16), (48, 16), (64, 64)] {
            let matrix = rotation(size, block);
            for (first, a) in matrix.chunks(size).enumerate() {
                for (second, b) in matrix.chunks(size).enumerate() {
                    let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    let expected = if first == second { 1.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-12, "{size} {first} {second}");
                }
            }
        }
    }
}
