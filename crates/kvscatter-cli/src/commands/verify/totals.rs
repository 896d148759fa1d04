//! The numbers of cases with each verdict.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::finding::FailureKind;
use super::judge::{CaseVerdict, Verdict};
use super::verdict::{Answer, InPlace};
use crate::output::count;

/// The numbers of cases with each verdict.
#[derive(Clone, Default, Serialize)]
pub(super) struct Totals {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) unreadable: usize,
    failures: Failures,
    /// The answers of another implementation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    answers: BTreeMap<Answer, usize>,
    /// The results of its calls in place.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    in_place: BTreeMap<InPlace, usize>,
}

/// The number of failed cases of each kind.
#[derive(Clone, Copy, Default, Serialize)]
struct Failures {
    wrong: usize,
    no_output: usize,
    not_refused: usize,
    wrongly_refused: usize,
    crashed: usize,
    timeout: usize,
    in_place: usize,
}

impl Totals {
    pub(super) fn new(lines: &[CaseVerdict]) -> Self {
        let mut totals = Self::default();
        let failures = &mut totals.failures;
        for line in lines {
            let (total, kind) = match &line.judged.verdict {
                Verdict::Pass => (&mut totals.passed, None),
                Verdict::Unreadable(_) => (&mut totals.unreadable, None),
                Verdict::Fail(failed) => {
                    let kind = match failed.finding.failure() {
                        FailureKind::Wrong => &mut failures.wrong,
                        FailureKind::NoOutput => &mut failures.no_output,
                        FailureKind::NotRefused => &mut failures.not_refused,
                        FailureKind::WronglyRefused => &mut failures.wrongly_refused,
                        FailureKind::Crashed => &mut failures.crashed,
                        FailureKind::Timeout => &mut failures.timeout,
                        FailureKind::InPlace => &mut failures.in_place,
                    };
                    (&mut totals.failed, Some(kind))
                }
            };
            let answer = line.judged.answer.map(|answer| totals.answers.entry(answer).or_default());
            let in_place = line.judged.in_place.map(|in_place| totals.in_place.entry(in_place).or_default());
            for count in kind.into_iter().chain([total]).chain(answer).chain(in_place) {
                *count = count.saturating_add(1);
            }
        }
        totals
    }

    /// Returns the results of calls in place as `in place: 80 exact, 12 copied`, if there are any.
    pub(super) fn in_place(&self) -> Option<String> {
        let counts: Vec<_> =
            self.in_place.iter().map(|(result, cases)| format!("{cases} {}", result.word())).collect();
        (!counts.is_empty()).then(|| format!("in place: {}", counts.join(", ")))
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", count(self.passed, "case"), self.failed)?;
        let Failures { wrong, no_output, not_refused, wrongly_refused, crashed, timeout, in_place } =
            self.failures;
        let kinds = [
            (wrong, "wrong"),
            (no_output, "without a readable output"),
            (not_refused, "not refused"),
            (wrongly_refused, "wrongly refused"),
            (crashed, "crashed"),
            (timeout, "out of time"),
            (in_place, "wrong only in place"),
        ];
        let kinds: Vec<_> =
            kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
        if !kinds.is_empty() {
            write!(f, " ({})", kinds.join(", "))?;
        }
        match self.unreadable {
            0 => Ok(()),
            unreadable => write!(f, ", {unreadable} could not be read"),
        }
    }
}
