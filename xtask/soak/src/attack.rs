//! Attacks. Each compares a part of the project with the oracle on the calls of a seed.

use std::panic;

use crate::tally::Tally;
use crate::{attention, core};

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// What a call is.
    pub(crate) about: &'static str,
    /// How much of the time it gets, compared with the others.
    pub(crate) share: f64,
    run: Run,
}

/// A call that differs from the oracle.
#[derive(Debug)]
pub(crate) struct Differs;

enum Run {
    /// A function that panics at the first difference.
    Here(fn(u64) -> Tally),
}

impl Attack {
    pub(crate) fn here(name: &'static str, about: &'static str, share: f64, run: fn(u64) -> Tally) -> Self {
        Self { name, about, share, run: Run::Here(run) }
    }

    /// Makes the calls of a seed.
    ///
    /// # Errors
    /// Returns an error if a call differs. The difference has been printed.
    pub(crate) fn run(&self, seed: u64) -> Result<Tally, Differs> {
        match self.run {
            Run::Here(run) => panic::catch_unwind(|| run(seed)).map_err(|_| Differs),
        }
    }
}

/// Returns the attacks that need no other program.
pub(crate) fn built_in() -> Vec<Attack> {
    vec![
        Attack::here("core", "plans of the three operators", 1.0, core::attack),
        Attack::here("attention", "calls of Attention", 2.0, attention::attack),
    ]
}
