//! Verdicts on the page.

use crate::certificate::Verdict;

/// Returns the class of a verdict in the style sheet.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::NotApplicable | Verdict::NotMeasured | Verdict::NotComparable => "open",
    }
}

/// Returns a sign for a verdict, so that the page does not depend on colour.
pub(super) fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "✓",
        Verdict::Failed => "✗",
        Verdict::NotApplicable | Verdict::NotMeasured | Verdict::NotComparable => "–",
    }
}
