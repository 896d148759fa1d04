//! Counts how many times a claim was examined and how many times it failed.

use crate::certificate::{Check, Failure, Verdict};

/// A claim that is being examined. It becomes a [`Check`].
#[derive(Clone, Debug)]
pub(crate) struct CheckBuilder {
    id: &'static str,
    claim: &'static str,
    failures: Vec<Failure>,
    failed: u64,
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
    pub(crate) fn new(id: &'static str, claim: &'static str) -> Self {
        Self { id, claim, failures: Vec::new(), failed: 0, looked: 0 }
    }

    pub(crate) fn look(&mut self, count: usize) {
        self.looked += u64::try_from(count).unwrap_or(u64::MAX);
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failed += 1;
        if self.failures.len() < Check::KEPT_FAILURES {
            self.failures.push(failure);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed > 0
    }

    /// Finishes the claim. If nothing was examined, the claim was not measured.
    pub(crate) fn into_check(self, evidence: impl FnOnce(u64) -> String) -> Check {
        if self.looked == 0 && self.failed == 0 {
            return Check::not_measured(self.id, self.claim, "no run reached this check");
        }
        let mut check = Check::passed(self.id, self.claim, evidence(self.looked));
        if self.failed > 0 {
            check.verdict = Verdict::Failed;
        }
        check.failures = self.failures;
        check.failure_count = self.failed;
        check
    }
}

impl Place<'_> {
    pub(crate) fn failure(self, message: impl Into<String>) -> Failure {
        Failure { scenario: Some(self.scenario.to_owned()), step: Some(self.step), ..Failure::new(message) }
    }
}
