//! Counts how many times a claim was examined and how many times it failed.

use crate::certificate::{Check, Failure, Verdict};

/// A claim that is being examined.
#[derive(Clone, Debug)]
pub(crate) struct CheckBuilder {
    check: Check,
    /// The number of places that were examined.
    pub(crate) looked: u64,
}

/// A step of a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) scenario: &'a str,
    pub(crate) step: usize,
}

impl CheckBuilder {
    pub(crate) fn new(id: &str, claim: &str) -> Self {
        Self { check: Check::not_measured(id, claim, "no run reached this check"), looked: 0 }
    }

    pub(crate) fn look(&mut self, count: usize) {
        self.looked += u64::try_from(count).unwrap_or(u64::MAX);
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.check.fail(failure);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.check.verdict == Verdict::Failed
    }

    /// Finishes the claim. If nothing was examined, the claim was not measured.
    pub(crate) fn into_check(self, evidence: impl FnOnce(u64) -> String) -> Check {
        let verdict = match self.check.verdict {
            Verdict::NotMeasured if self.looked > 0 => Verdict::Passed,
            Verdict::NotMeasured => return self.check,
            verdict => verdict,
        };
        Check { verdict, evidence: evidence(self.looked), ..self.check }
    }
}

impl Place<'_> {
    pub(crate) fn failure(self, message: impl Into<String>) -> Failure {
        Failure { scenario: Some(self.scenario.to_owned()), step: Some(self.step), ..Failure::new(message) }
    }
}
