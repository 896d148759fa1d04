//! How a row becomes int8, and how it is rotated before.

use kvscatter::ElementType;
use kvscatter::quantize::{MIN_SCALE, SCALE_FACTOR, inverse_root};

use crate::fold::round;

/// The name of the pass.
pub(in crate::convert) const PASS: &str = "narrow caches";

/// Returns [`SCALE_FACTOR`] and [`MIN_SCALE`].
pub(super) fn scale_constants() -> [f64; 2] {
    [SCALE_FACTOR, MIN_SCALE].map(f64::from)
}

/// Returns the matrix of a rotation, `[size, size]` in row-major order: orthonormal Hadamard matrices of Sylvester's
/// form on the diagonal.
pub(super) fn rotation(size: usize, block: usize) -> Vec<f64> {
    let magnitude = f64::from(inverse_root(block));
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
    use super::rotation;

    #[test]
    fn a_rotation_is_orthonormal() {
        for (size, block) in [(16, 16), (48, 16), (64, 64)] {
            let matrix = rotation(size, block);
            for (first, a) in matrix.chunks(size).enumerate() {
                for (second, b) in matrix.chunks(size).enumerate() {
                    let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    let expected = if first == second { 1.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-6, "{size} {first} {second}");
                }
            }
        }
    }
}
