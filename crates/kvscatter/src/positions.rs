//! Converts between `write_indices` and the other conventions for positions.
//!
//! Confusing these conventions is the most common off-by-one error in this field:
//!
//! | system | its number | meaning |
//! |---|---|---|
//! | ONNX, TensorRT | `write_indices` | the first slot written |
//! | ONNX Attention | `nonpad_kv_seqlen` | the length *after* the write |
//! | Ascend ATB | `tokenOffset` | the end, which is the length after the write |
//! | GroupQueryAttention | `seqlens_k` | the *last index*, which is the length after the write minus 1 |
//!
//! In every function, `rows` is the number of rows of the sample that are written, including right padding.
//! The padding counts because of the mask of causal Attention after a `TensorScatter`: query `i` sees key
//! `j <= i + nonpad_kv_seqlen - q_len`. So pass the length `write_indices + q_len`, and subtract the padding
//! only from the *next* write index.
//!
//! Positions are unwrapped, so they keep growing in a ring. Only [`nonpad_kv_seqlen`] stops at the capacity.
//!
//! ```
//! use kvscatter::positions;
//! // The cache contains 5 tokens, and 2 more are written after them.
//! assert_eq!(positions::length_after(5, 2), Ok(7));
//! assert_eq!(positions::token_offset(5, 2), Ok(7));
//! assert_eq!(positions::seqlens_k(5, 2), Ok(6));
//! assert_eq!(positions::start_from_seqlens_k(6, 2), Ok(5));
//! ```

use crate::error::Error;
use crate::plan::Mode;
use crate::visibility::Visibility;

/// Converts `write_indices` to the length after the write.
///
/// # Errors
/// Returns [`Error::InvalidPosition`] if the start is negative or the sum does not fit `i64`.
pub fn length_after(start: i64, rows: usize) -> Result<i64, Error> {
    let unfit = Error::InvalidPosition { value: start, rows };
    let rows = i64::try_from(rows).map_err(|_| unfit)?;
    if start < 0 {
        return Err(unfit);
    }
    start.checked_add(rows).ok_or(unfit)
}

/// Converts the length after the write to `write_indices`.
///
/// # Errors
/// Returns [`Error::InvalidPosition`] if the length is less than `rows`.
pub fn start_from_length_after(length: i64, rows: usize) -> Result<i64, Error> {
    let unfit = Error::InvalidPosition { value: length, rows };
    let rows = i64::try_from(rows).map_err(|_| unfit)?;
    length.checked_sub(rows).filter(|start| *start >= 0).ok_or(unfit)
}

/// Converts `write_indices` to Ascend's `tokenOffset`.
///
/// # Errors
/// Returns the same errors as [`length_after`].
pub fn token_offset(start: i64, rows: usize) -> Result<i64, Error> {
    length_after(start, rows)
}

/// Converts Ascend's `tokenOffset` to `write_indices`.
///
/// # Errors
/// Returns the same errors as [`start_from_length_after`].
pub fn start_from_token_offset(token_offset: i64, rows: usize) -> Result<i64, Error> {
    start_from_length_after(token_offset, rows)
}

/// Converts `write_indices` to GroupQueryAttention's `seqlens_k`. The result is -1 for an empty sample.
///
/// # Errors
/// Returns the same errors as [`length_after`].
pub fn seqlens_k(start: i64, rows: usize) -> Result<i64, Error> {
    length_after(start, rows)?.checked_sub(1).ok_or(Error::InvalidPosition { value: start, rows })
}

/// Converts GroupQueryAttention's `seqlens_k` to `write_indices`.
///
/// # Errors
/// Returns the same errors as [`start_from_length_after`].
pub fn start_from_seqlens_k(last: i64, rows: usize) -> Result<i64, Error> {
    let length = last.checked_add(1).ok_or(Error::InvalidPosition { value: last, rows })?;
    start_from_length_after(length, rows).map_err(|_| Error::InvalidPosition { value: last, rows })
}

/// Converts `write_indices` to ONNX Attention's `nonpad_kv_seqlen`.
///
/// The result is the length after the write. In a ring, it stops at the capacity.
///
/// # Errors
/// Returns the same errors as [`length_after`]. In linear mode, also returns [`Error::InvalidPosition`] if
/// the rows do not fit the capacity.
pub fn nonpad_kv_seqlen(start: i64, rows: usize, capacity: usize, mode: Mode) -> Result<i64, Error> {
    let length = length_after(start, rows)?;
    let cached = Visibility::new(mode, capacity).cached(length);
    if cached.end == length {
        Ok(cached.end.saturating_sub(cached.start))
    } else {
        Err(Error::InvalidPosition { value: start, rows })
    }
}

/// Converts ONNX Attention's `nonpad_kv_seqlen` to `write_indices`.
///
/// # Errors
/// Returns the same errors as [`start_from_length_after`]. Also returns [`Error::InvalidPosition`] if the
/// length exceeds the capacity, or if a ring is full, because a full ring may have wrapped any number of
/// times.
pub fn start_from_nonpad_kv_seqlen(
    length: i64,
    rows: usize,
    capacity: usize,
    mode: Mode,
) -> Result<i64, Error> {
    let known = usize::try_from(length).is_ok_and(|length| match mode {
        Mode::Linear => length <= capacity,
        Mode::Circular => length < capacity,
    });
    if known {
        start_from_length_after(length, rows)
    } else {
        Err(Error::InvalidPosition { value: length, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_convention_leads_back_to_the_start() {
        for start in [0, 1, 5, 4095, i64::MAX - 8] {
            for rows in [0, 1, 7] {
                let there = length_after(start, rows).unwrap();
                assert_eq!(start_from_length_after(there, rows), Ok(start));
                assert_eq!(start_from_token_offset(token_offset(start, rows).unwrap(), rows), Ok(start));
                let last = seqlens_k(start, rows).unwrap();
                assert_eq!(last, there - 1);
                assert_eq!(start_from_seqlens_k(last, rows), Ok(start));
            }
        }
    }

    #[test]
    fn positions_without_a_meaning_are_errors() {
        let unfit = |value, rows| Err(Error::InvalidPosition { value, rows });
        assert_eq!(length_after(-1, 1), unfit(-1, 1));
        assert_eq!(length_after(i64::MAX, 1), unfit(i64::MAX, 1));
        assert_eq!(length_after(0, usize::MAX), unfit(0, usize::MAX));
        assert_eq!(start_from_length_after(2, 3), unfit(2, 3));
        assert_eq!(start_from_length_after(i64::MIN, 1), unfit(i64::MIN, 1));
        assert_eq!(start_from_seqlens_k(i64::MAX, 1), unfit(i64::MAX, 1));
        assert_eq!(start_from_seqlens_k(0, 2), unfit(0, 2));
    }

    #[test]
    fn a_ring_saturates_and_forgets() {
        use Mode::{Circular, Linear};
        assert_eq!(nonpad_kv_seqlen(6, 2, 8, Circular), Ok(8));
        assert_eq!(nonpad_kv_seqlen(7, 2, 8, Circular), Ok(8));
        assert_eq!(nonpad_kv_seqlen(7, 2, 8, Linear), Err(Error::InvalidPosition { value: 7, rows: 2 }));
        assert_eq!(start_from_nonpad_kv_seqlen(7, 2, 8, Circular), Ok(5));
        assert_eq!(start_from_nonpad_kv_seqlen(8, 2, 8, Linear), Ok(6));
        for length in [8, 9] {
            let unfit = Err(Error::InvalidPosition { value: length, rows: 2 });
            assert_eq!(start_from_nonpad_kv_seqlen(length, 2, 8, Circular), unfit);
        }
    }
}
