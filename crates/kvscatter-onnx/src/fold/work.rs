//! The limit on the work of one evaluation.

use std::cell::Cell;

use super::{FoldError, Value, Values};
use crate::OnnxError;

/// The maximum work of one [`Fold`](super::Fold) between two changes. Every byte of a value and every
/// multiplication of a matrix product counts as 1.
const MAX_WORK: u64 = 512 << 20;

/// The work that may still be charged.
#[derive(Debug)]
pub(super) struct Work(Cell<u64>);

impl Work {
    /// Returns the whole allowance.
    pub(super) fn new() -> Self {
        Self(Cell::new(MAX_WORK))
    }

    /// Restores the whole allowance after a change.
    pub(super) fn reset(&self) {
        self.0.set(MAX_WORK);
    }

    /// Charges work that is about to be done.
    ///
    /// # Errors
    /// Returns [`FoldError::TooMuch`] if more than [`MAX_WORK`] is charged.
    pub(super) fn charge(&self, amount: usize) -> Result<(), OnnxError> {
        let left = u64::try_from(amount).ok().and_then(|amount| self.0.get().checked_sub(amount));
        self.0.set(left.ok_or(FoldError::TooMuch { limit: MAX_WORK })?);
        Ok(())
    }

    /// Charges the bytes of a value like [`charge`](Self::charge).
    pub(super) fn charge_values(&self, value: &Value) -> Result<(), OnnxError> {
        self.charge(match &value.data {
            None => 0,
            Some(Values::Bools(values)) => values.len(),
            Some(values) => values.len().saturating_mul(8),
        })
    }
}
