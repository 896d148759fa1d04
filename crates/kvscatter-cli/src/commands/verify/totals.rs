//! The numbers of cases with each verdict.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use strum::VariantArray;

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
    #[serde(serialize_with = "by_name")]
    failures: BTreeMap<FailureKind, usize>,
    /// The answers of another implementation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    answers: BTreeMap<Answer, usize>,
    /// The results of its calls in place.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    in_place: BTreeMap<InPlace, usize>,
}

impl Totals {
    pub(super) fn new(lines: &[CaseVerdict]) -> Self {
        let mut totals = Self::default();
        totals.failures.extend(FailureKind::VARIANTS.iter().map(|kind| (*kind, 0)));
        for line in lines {
            let (total, kind) = match &line.judged.verdict {
                Verdict::Pass => (&mut totals.passed, None),
                Verdict::Unreadable(_) => (&mut totals.unreadable, None),
                Verdict::Fail(failed) => (&mut totals.failed, Some(failed.finding.failure())),
            };
            let kind = kind.map(|kind| totals.failures.entry(kind).or_default());
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
        let kinds = self.failures.iter().filter(|(_, cases)| **cases > 0);
        let kinds: Vec<_> = kinds.map(|(kind, cases)| format!("{cases} {}", kind.words()[1])).collect();
        if !kinds.is_empty() {
            write!(f, " ({})", kinds.join(", "))?;
        }
        match self.unreadable {
            0 => Ok(()),
            unreadable => write!(f, ", {unreadable} could not be read"),
        }
    }
}

fn by_name<S: Serializer>(failures: &BTreeMap<FailureKind, usize>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(failures.iter().map(|(kind, cases)| (kind.words()[0], cases)))
}
