//! What an attack returns.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The calls of an attack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Tally {
    /// The calls that break no rule. All of their results were compared.
    pub(crate) accepted: u64,
    /// The calls that break a rule. Their errors were compared.
    pub(crate) refused: u64,
}

/// A call that differs from the oracle. The difference has been printed.
#[derive(Debug)]
pub(crate) struct Differs;

impl Tally {
    pub(crate) fn calls(self) -> u64 {
        self.accepted + self.refused
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.refused += other.refused;
    }
}
