//! The limits on the work of one evaluation, and of all evaluations that share a budget.

use std::cell::Cell;
use std::rc::Rc;

use super::{FoldError, Value, Values};
use crate::OnnxError;

/// The maximum work of one [`Fold`](super::Fold) between two changes. Every byte of a value and every
/// multiplication of a matrix product counts as 1.
const MAX_WORK: u64 = 512 << 20;

/// The maximum work of all evaluations that share a budget. It takes a few seconds.
const MAX_SHARED_WORK: u64 = 2 * MAX_WORK;

/// The work that one evaluation may still do.
#[derive(Debug)]
pub(super) struct Work {
    left: Cell<u64>,
    budget: Option<Rc<Budget>>,
}

impl Work {
    /// Returns the whole allowance. Everything is also charged to the budget.
    pub(super) fn new(budget: Option<Rc<Budget>>) -> Self {
        Self { left: Cell::new(MAX_WORK), budget }
    }

    /// Restores the whole allowance after a change. The budget stays as it is.
    pub(super) fn reset(&self) {
        self.left.set(MAX_WORK);
    }

    /// Charges work that is about to be done.
    ///
    /// # Errors
    /// Returns [`FoldError::TooMuch`] if more than [`MAX_WORK`] is charged, or more than is left in the
    /// budget.
    pub(super) fn charge(&self, amount: usize) -> Result<(), OnnxError> {
        let left = less(&self.left, amount).ok_or(FoldError::TooMuch { limit: MAX_WORK })?;
        self.left.set(left);
        self.budget.as_ref().map_or(Ok(()), |budget| budget.charge(amount))
    }

    /// Charges the bytes of a value like [`charge`](Self::charge).
    pub(super) fn charge_values(&self, value: &Value) -> Result<(), OnnxError> {
        self.charge(bytes(value))
    }
}

/// The work that several evaluations may still do together.
#[derive(Debug)]
pub(crate) struct Budget(Cell<u64>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Cell::new(MAX_SHARED_WORK))
    }

    /// Returns `true` if nothing is left. Every charge fails then.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }

    /// Charges the bytes of a value that is about to be copied.
    ///
    /// # Errors
    /// Returns [`FoldError::TooMuch`] if no more than these bytes are left. Nothing is left then.
    pub(crate) fn charge_values(&self, value: &Value) -> Result<(), OnnxError> {
        self.charge(bytes(value))
    }

    fn charge(&self, amount: usize) -> Result<(), OnnxError> {
        let left = less(&self.0, amount).filter(|&left| left > 0);
        self.0.set(left.unwrap_or_default());
        left.map_or(Err(FoldError::TooMuch { limit: MAX_SHARED_WORK }.into()), |_| Ok(()))
    }
}

fn less(left: &Cell<u64>, amount: usize) -> Option<u64> {
    u64::try_from(amount).ok().and_then(|amount| left.get().checked_sub(amount))
}

fn bytes(value: &Value) -> usize {
    match &value.data {
        None => 0,
        Some(Values::Bools(values)) => values.len(),
        Some(values) => values.len().saturating_mul(8),
    }
}
