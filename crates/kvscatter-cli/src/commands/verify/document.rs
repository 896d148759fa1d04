//! The document that `--json` prints.

use serde::Serialize;

use super::corpus::CorpusRule;
use super::finding::{Failure, Finding, InPlaceFault};
use super::judge::{CaseVerdict, Verdict};
use super::rules::RuleCount;
use super::scatter::{ScatterCall, WrongSlots};
use super::totals::Totals;
use super::verdict::{Answer, InPlace};
use crate::compare::Mismatch;

#[derive(Serialize)]
pub(super) struct VerifyDocument<'a> {
    pub(super) cases: Vec<CaseVerdictDocument<'a>>,
    #[serde(flatten)]
    pub(super) totals: Totals,
    /// The rules that a case breaks.
    pub(super) broken_rules: Vec<RuleCount>,
    /// The folders of `--actual` that belong to no case.
    pub(super) unknown_folders: Vec<String>,
}

/// The verdict on a case.
#[derive(Serialize)]
pub(super) struct CaseVerdictDocument<'a> {
    case: &'a str,
    verdict: &'static str,
    /// The rule of the corpus that the case tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a CorpusRule>,
    /// The answer of another implementation.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Answer>,
    /// The result of its call in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place: Option<InPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mismatch: Option<&'a Mismatch>,
    /// The slots of the mismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong_slots: Option<&'a WrongSlots>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_mismatch: Option<&'a Mismatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_scatter: Option<&'a ScatterCall>,
    /// The command that draws the write.
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<String>,
}

impl<'a> From<&'a CaseVerdict> for CaseVerdictDocument<'a> {
    fn from(line: &'a CaseVerdict) -> Self {
        let passed = Self {
            case: &line.case,
            verdict: "pass",
            rule: line.note.as_ref().map(|note| &*note.rule),
            answer: line.judged.answer,
            in_place: line.judged.in_place,
            failure: None,
            reason: None,
            mismatch: None,
            wrong_slots: None,
            in_place_reason: None,
            in_place_mismatch: None,
            tensor_scatter: None,
            picture: None,
        };
        match &line.judged.verdict {
            Verdict::Pass => passed,
            Verdict::Fail(failed) => Self {
                verdict: "fail",
                failure: Some(failed.finding.failure()),
                reason: Some(failed.reason()),
                mismatch: match &failed.finding {
                    Finding::Mismatch(mismatch) => Some(mismatch),
                    _ => None,
                },
                wrong_slots: failed.slots.as_ref(),
                in_place_reason: failed.in_place.as_ref().map(ToString::to_string),
                in_place_mismatch: failed.in_place.as_ref().and_then(InPlaceFault::mismatch),
                tensor_scatter: failed.call.as_ref(),
                picture: failed.picture(),
                ..passed
            },
            Verdict::Unreadable(error) => {
                Self { verdict: "unreadable", reason: Some(error.to_string()), ..passed }
            }
        }
    }
}
