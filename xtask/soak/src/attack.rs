//! Attacks. Each compares a part of the project with the oracle on the calls of a seed.

use std::panic::{self, AssertUnwindSafe};

use crate::programs::Program;
use crate::sessions::Sessions;
use crate::tally::{Differs, Tally};
use crate::{attention, core};

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// What a call is.
    pub(crate) about: &'static str,
    /// How much of the time it gets, compared with the others.
    pub(crate) share: f64,
    run: Run,
}

enum Run {
    /// A function that panics at the first difference.
    Here(Box<dyn Fn(u64) -> Tally>),
    /// Commands that fail at the first difference.
    Program(Program),
}

impl Attack {
    pub(crate) fn here(
        name: &'static str,
        about: &'static str,
        share: f64,
        run: impl Fn(u64) -> Tally + 'static,
    ) -> Self {
        Self { name, about, share, run: Run::Here(Box::new(run)) }
    }

    pub(crate) fn program(name: &'static str, about: &'static str, share: f64, program: Program) -> Self {
        Self { name, about, share, run: Run::Program(program) }
    }

    /// Makes the calls of a seed.
    ///
    /// # Errors
    /// Returns an error if a call differs. The difference has been printed.
    pub(crate) fn run(&self, seed: u64) -> Result<Tally, Differs> {
        match &self.run {
            // After a panic, no attack runs again.
            Run::Here(run) => panic::catch_unwind(AssertUnwindSafe(|| run(seed))).map_err(|_| Differs),
            Run::Program(program) => program.run(seed),
        }
    }
}

/// Returns the attacks that need no other program.
pub(crate) fn built_in() -> Vec<Attack> {
    let sessions = Sessions::default();
    vec![
        Attack::here("core", "plans of the three operators", 1.0, core::attack),
        Attack::here("attention", "calls of Attention", 1.5, attention::attack),
        Attack::here("sessions", "steps of sessions", 0.5, move |seed| sessions.attack(seed)),
    ]
}

#[cfg(test)]
mod tests {
    use super::built_in;

    #[test]
    fn the_first_seeds_agree_with_the_oracle() {
        for attack in built_in() {
            let mut refused = 0;
            for seed in 0..2 {
                let tally = attack.run(seed).unwrap();
                assert!(tally.accepted > 50, "{}: {tally:?}", attack.name);
                refused += tally.refused;
            }
            assert!(refused > 0, "{}", attack.name);
        }
    }

    #[test]
    fn a_seed_makes_the_same_calls_again() {
        for attack in built_in() {
            let [first, again, other] = [7, 7, 8].map(|seed| attack.run(seed).unwrap());
            assert_eq!(first, again, "{}", attack.name);
            assert_ne!(first, other, "{}", attack.name);
        }
    }
}
