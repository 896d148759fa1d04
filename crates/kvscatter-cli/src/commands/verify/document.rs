//! The document that `--json` prints.

use serde_json::{Value, json};

use super::finding::{Finding, InPlaceFault};
use super::judge::{CaseVerdict, Verdict};
use super::rules::RuleCount;
use super::totals::Totals;
use crate::json::{joined, without_null};

/// The fields that a case may lack.
const OPTIONAL: [&str; 9] = [
    "rule",
    "answer",
    "in_place",
    "mismatch",
    "wrong_slots",
    "in_place_reason",
    "in_place_mismatch",
    "tensor_scatter",
    "picture",
];

/// Returns the verdicts and their numbers, the rules that a case breaks, and the folders of `--actual` that belong to
/// no case.
pub(super) fn document(
    lines: &[CaseVerdict],
    totals: &Totals,
    broken: &[RuleCount],
    unknown: &[String],
) -> Value {
    let cases = json!({"cases": lines.iter().map(case).collect::<Value>()});
    let rest = json!({"broken_rules": broken, "unknown_folders": unknown});
    joined(joined(cases, json!(totals)), rest)
}

/// Returns the verdict on a case.
fn case(line: &CaseVerdict) -> Value {
    let judged = &line.judged;
    let verdict = match judged.verdict {
        Verdict::Pass => "pass",
        Verdict::Fail(_) => "fail",
        Verdict::Unreadable(_) => "unreadable",
    };
    let mut fields = json!({
        "case": line.case,
        "verdict": verdict,
        // The rule of the corpus that the case tests.
        "rule": line.note.as_ref().map(|note| &*note.rule),
        // The answer of another implementation, and the result of its call in place.
        "answer": judged.answer,
        "in_place": judged.in_place,
    });
    match &judged.verdict {
        Verdict::Pass => {}
        Verdict::Unreadable(error) => fields = joined(fields, json!({"reason": error.to_string()})),
        Verdict::Fail(failed) => {
            let mismatch = match &failed.finding {
                Finding::Mismatch(mismatch) => Some(mismatch),
                _ => None,
            };
            let failure = json!({
                "failure": failed.finding.failure(),
                "reason": failed.reason(),
                "mismatch": mismatch,
                // The slots of the mismatch.
                "wrong_slots": failed.slots,
                "in_place_reason": failed.in_place.as_ref().map(ToString::to_string),
                "in_place_mismatch": failed.in_place.as_ref().and_then(InPlaceFault::mismatch),
                "tensor_scatter": failed.call,
                // The command that draws the write.
                "picture": failed.picture(),
            });
            fields = joined(fields, failure);
        }
    }
    without_null(fields, &OPTIONAL)
}
