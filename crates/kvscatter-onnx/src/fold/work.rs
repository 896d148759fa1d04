//! The limit on what one fold computes.

use std::cell::Cell;

use super::{FoldError, Value, Values};
use crate::OnnxError;

/// How many bytes of values, and multiplications of matrix products, one [`Fold`](super::Fold) computes between two changes.
const MAX_WORK: u64 = 512 << 20;

/// What may still be computed.
#[derive(Debug)]
pub(super) struct Work(Cell<u64>);

impl Work {
    /// Returns the whole allowance.
    pub(super) fn new() -> Self {
        Self(Cell::new(MAX_WORK))
    }

    /// Allows everything again, after a change.
    pub(super) fn reset(&self) {
        self.0.set(MAX_WORK);
    }

    /// Takes note of something that is computed.
    ///
    /// # Errors
    /// [`FoldError::TooMuch`] beyond [`MAX_WORK`].
    pub(super) fn charge(&self, amount: usize) -> Result<(), OnnxError> {
        let left = u64::try_from(amount).ok().and_then(|amount| self.0.get().checked_sub(amount));
        self.0.set(left.ok_or(FoldError::TooMuch { limit: MAX_WORK })?);
        Ok(())
    }

    /// As [`charge`](Self::charge), for the bytes of a value.
    pub(super) fn charge_values(&self, value: &Value) -> Result<(), OnnxError> {
        self.charge(match &value.data {
            None => 0,
            Some(Values::Bools(values)) => values.len(),
            Some(values) => values.len().saturating_mul(8),
        })
    }
}
