//! Rows of a cache in fewer bits than they are given, in float64.
//!
//! A row is the vector of one token and one head, of float32 numbers. A cache of int8 stores, of each row,
//!
//! 1. the scale, the largest magnitude times float32's 1/127, rounded to float32, and `2^-100` if that is more
//! 2. the codes, `x / scale` rounded to float32, and then to the nearest integer, ties to even
//!
//! and what is read of it is `code * scale`, rounded to float32. A row with NaN or an infinity has the scale NaN
//! and the codes 0.
//!
//! A cache of a half type stores the [nearest](Float::round) number of that type.
//!
//! Keys of int8 are first [rotated], and so is every query.

use crate::attention::Float;

/// A row as a cache of int8 stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// A float32 number.
    pub scale: f64,
    /// Integers from -127 to 127.
    pub codes: Vec<f64>,
}

impl Row {
    /// Returns what is stored of a row of float32 numbers.
    #[must_use]
    pub fn quantize(row: &[f64]) -> Self {
        if !row.iter().all(|x| x.is_finite()) {
            return Self { scale: f64::NAN, codes: vec![0.0; row.len()] };
        }
        let float32 = |x| Float::F32.round(x);
        let largest = row.iter().fold(0.0, |largest, x| f64::max(largest, x.abs()));
        let scale = f64::max(float32(largest * float32(1.0 / 127.0)), 2_f64.powi(-100));
        // A quotient that is rounded to float64 and then to float32 is that of float32.
        // An integer has no -0, to which 0 is added here.
        Self { scale, codes: row.iter().map(|x| float32(x / scale).round_ties_even() + 0.0).collect() }
    }

    /// Returns what is read of the row.
    #[must_use]
    pub fn read(&self) -> Vec<f64> {
        self.codes.iter().map(|code| Float::F32.round(code * self.scale)).collect()
    }

    /// Returns the largest difference between a finite element and `code * scale`: half a code, and the rounding of
    /// the scale and of the quotient to float32, which add at most `2^-16` of a code.
    #[must_use]
    pub fn bound(&self) -> f64 {
        self.scale * (0.5 + 2_f64.powi(-16))
    }
}

/// Returns the product of a row with the orthonormal Hadamard matrix, in blocks of the largest power of two that
/// divides its size. Rows with blocks of fewer than 16 elements are not rotated.
#[must_use]
pub fn rotated(row: &[f64]) -> Vec<f64> {
    let Some(block) =
        (4..usize::BITS).rev().map(|power| 1 << power).find(|block| row.len().is_multiple_of(*block))
    else {
        return row.to_vec();
    };
    let element = |at: usize| {
        let sign = |i: usize| if (i & (at % block)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let first = at - at % block;
        (0..block).map(|i| sign(i) * row[first + i]).sum::<f64>() / (block as f64).sqrt()
    };
    (0..row.len()).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::{Row, rotated};

    #[test]
    fn codes_round_to_even() {
        let row = Row::quantize(&[127.0, 0.5, 1.5, -2.5, -3.5, 1.25]);
        assert_eq!(row, Row { scale: 1.0, codes: vec![127.0, 0.0, 2.0, -2.0, -4.0, 1.0] });
        assert_eq!(row.read(), row.codes);
        assert!(row.bound() > 0.5 && row.bound() < 0.500_02);
    }

    #[test]
    fn small_rows_have_the_least_scale() {
        let least = 2_f64.powi(-100);
        for row in [[0.0; 3], [-0.0; 3], [1e-40; 3]] {
            assert_eq!(Row::quantize(&row), Row { scale: least, codes: vec![0.0; 3] });
        }
        assert_eq!(Row::quantize(&[least, -1.5 * least, 0.0]).codes, [1.0, -2.0, 0.0]);
        assert_eq!(Row::quantize(&[]).scale, least);
    }

    #[test]
    fn rows_that_are_not_finite_are_nan() {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let row = Row::quantize(&[1.0, x, 2.0]);
            assert!(row.scale.is_nan() && row.codes == [0.0; 3]);
            assert!(row.read().iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn a_rotation_inverts_itself_and_keeps_lengths() {
        for size in [16, 48, 64, 80] {
            let row: Vec<f64> = (0..size).map(|i| f64::from(i * i % 23) - 11.0).collect();
            let length = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
            assert!((length(&rotated(&row)) - length(&row)).abs() < 1e-9 * length(&row));
            assert_ne!(rotated(&row), row);
            let again = rotated(&rotated(&row));
            assert!(again.iter().zip(&row).all(|(a, b)| (a - b).abs() < 1e-12), "{size}");
        }
        assert_eq!(rotated(&[1.0; 8]), [1.0; 8]);
        assert_eq!(rotated(&[1.0; 16])[..2], [4.0, 0.0]);
        assert!(rotated(&[]).is_empty());
    }
}
