//! Rows of a cache as int8 codes with one scale each, and the rotation of keys and queries before that.
//!
//! A row is the vector of one token and one head. Its scale is `s = max(max |x| * (1/127), 2^-100)` in float32, and its
//! codes are `x / s`, rounded to the nearest whole number, ties to even. What is read is `code * s`. ONNX writes the
//! same with `Abs`, `ReduceMax`, `Mul`, `Max` and a blocked `QuantizeLinear`, and gives the same bits for finite rows.
//!
//! * For a finite row, `|code * s - x|` is at most [`largest_error`] for each element.
//! * Codes lie between -127 and 127.
//! * A row with NaN or an infinity gets the scale NaN and codes of 0, so it is read as NaN. ONNX Runtime's `ReduceMax`
//!   ignores NaN, so its operators lose it.
//! * A row of zeros, or of numbers below `2^-101 * 127`, has the scale `2^-100`. So no scale is 0.
//!
//! Large elements of a few channels make the scale of a key large, and all other elements of the key inexact. So keys
//! are rotated before that ([`rotate_row`]), which spreads these elements over the row. A query that is rotated too has
//! the same product with the key.

use crate::ElementType;

/// The factor from the largest magnitude of a row to its scale.
pub const SCALE_FACTOR: f32 = 1.0 / 127.0;

/// The least scale, `2^-100`.
pub const MIN_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// The smallest block in which a rotation spreads large elements enough to be of use.
const MIN_BLOCK: usize = 16;

/// Adding this number to one below 2^22 rounds it to a whole number, whose low bits are then those of the sum.
const ROUNDS: f32 = 12_582_912.0;

/// Stores the codes of a row, and returns its scale. Both slices must have the same length. The rest of a longer one is
/// not used.
///
/// ```
/// use kvscatter::quantize::{dequantize_row, quantize_row};
///
/// let (row, mut codes, mut read) = ([1.0, -0.5, 0.1, 0.0], [0; 4], [0.0; 4]);
/// let scale = quantize_row(&row, &mut codes);
/// assert_eq!((scale, codes), (1.0 / 127.0, [127, -64, 13, 0]));
/// dequantize_row(&codes, scale, &mut read);
/// assert!(row.iter().zip(read).all(|(given, read)| (read - given).abs() <= scale * 0.50002));
/// ```
#[must_use = "the codes have no meaning without their scale"]
pub fn quantize_row(row: &[f32], codes: &mut [i8]) -> f32 {
    // Without the sign, the bits of floats are in the order of the floats, and those of infinity and NaN come last.
    let most = row.iter().fold(0, |most, x| (x.to_bits() & !SIGN).cast_signed().max(most));
    let most = f32::from_bits(most.cast_unsigned());
    if !most.is_finite() {
        codes.iter_mut().zip(row).for_each(|(code, _)| *code = 0);
        return f32::NAN;
    }
    let scale = (most * SCALE_FACTOR).max(MIN_SCALE);
    for (code, x) in codes.iter_mut().zip(row) {
        let [low, ..] = (x / scale + ROUNDS).to_bits().to_le_bytes();
        *code = low.cast_signed();
    }
    scale
}

/// The bit of a float's sign.
const SIGN: u32 = 1 << 31;

/// Stores the values of a row: each code times the scale. Both slices must have the same length. The rest of a longer
/// one is not used.
pub fn dequantize_row(codes: &[i8], scale: f32, row: &mut [f32]) {
    row.iter_mut().zip(codes).for_each(|(x, code)| *x = f32::from(*code) * scale);
}

/// Returns the size of the blocks in which rows of this size are rotated: the largest power of two that divides it, or
/// `None` if that is below 16. Such rows are not rotated.
#[must_use]
pub fn rotation_block(size: usize) -> Option<usize> {
    let block = size & size.wrapping_neg();
    (block >= MIN_BLOCK).then_some(block)
}

/// Multiplies a row with the orthonormal Hadamard matrix in Sylvester's order, in the blocks of [`rotation_block`]. The
/// matrix is its own inverse. A row of another size stays as it is.
///
/// The sums are in the order of a fast transform, so a product with the matrix may differ from them in the last bits.
///
/// ```
/// use kvscatter::quantize::rotate_row;
///
/// let mut row = [0.0; 16];
/// row[3] = 8.0;
/// rotate_row(&mut row); // the large element is spread over all
/// assert_eq!(row[..4], [2.0, -2.0, -2.0, 2.0]);
/// ```
pub fn rotate_row(row: &mut [f32]) {
    let Some(block) = rotation_block(row.len()) else { return };
    let factor = inverse_root(block);
    for block in row.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block.len() {
            for pair in block.chunks_exact_mut(half << 1) {
                let (first, second) = pair.split_at_mut(half);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half <<= 1;
        }
        block.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Returns an element of the matrix with which [`rotate_row`] multiplies rows of this size. It is symmetric, and the
/// identity for rows that are not rotated.
///
/// ```
/// use kvscatter::quantize::rotation_element;
///
/// assert_eq!(rotation_element(16, 3, 1), -0.25);
/// assert_eq!(rotation_element(48, 3, 17), 0.0); // another block
/// ```
#[must_use]
pub fn rotation_element(size: usize, row: usize, column: usize) -> f32 {
    let block = rotation_block(size).unwrap_or(1);
    let in_block = block.wrapping_sub(1);
    if row & !in_block != column & !in_block {
        return 0.0;
    }
    let magnitude = inverse_root(block);
    if (row & column & in_block).count_ones() & 1 == 0 { magnitude } else { -magnitude }
}

/// Returns `1 / sqrt(size)` for a power of two.
fn inverse_root(size: usize) -> f32 {
    // `1 / sqrt(2^n)` is `2^-(n / 2)`, for odd `n` times `1 / sqrt(2)`.
    let power = size.trailing_zeros();
    let half = f32::from_bits(127_u32.saturating_sub(power >> 1) << 23);
    if power & 1 == 0 { half } else { half * core::f32::consts::FRAC_1_SQRT_2 }
}

/// Returns the largest difference between a finite number and what a cache of this type stores of it. `scale` is that
/// of the number's row of codes.
///
/// | Type | Largest difference |
/// |---|---|
/// | int8 | `scale * (1/2 + 2^-16)` |
/// | float16 | `2^-11` of the magnitude, and `2^-25` for magnitudes below `2^-14` |
/// | bfloat16 | `2^-8` of the magnitude, and `2^-134` for magnitudes below `2^-126` |
/// | float32 | `2^-24` of the magnitude, and `2^-150` for magnitudes below `2^-126` |
///
/// It is `None` for magnitudes above 65504 in float16, which may become infinite, and for other types.
#[must_use]
pub fn largest_error(element: ElementType, given: f64, scale: f64) -> Option<f64> {
    let magnitude = given.abs();
    let rounded = |relative, least| (magnitude * inverse_power(relative)).max(inverse_power(least));
    match element {
        ElementType::Int8 => Some(scale * (0.5 + inverse_power(16))),
        ElementType::Float16 => (magnitude <= 65504.0).then(|| rounded(11, 25)),
        ElementType::BFloat16 => Some(rounded(8, 134)),
        ElementType::Float32 => Some(rounded(24, 150)),
        _ => None,
    }
}

/// Returns `2^-power` for a power up to 1022.
fn inverse_power(power: u64) -> f64 {
    f64::from_bits(1023_u64.saturating_sub(power) << 52)
}
