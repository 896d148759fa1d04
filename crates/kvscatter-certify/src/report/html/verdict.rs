//! A verdict on the page.

use crate::certificate::Verdict;

/// The class of a verdict in the style sheet.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::NotApplicable | Verdict::NotMeasured | Verdict::NotComparable => "open",
    }
}

/// A verdict as a sign, so that it does not depend on colour.
pub(super) fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "✓",
        Verdict::Failed => "✗",
        Verdict::NotApplicable | Verdict::NotMeasured | Verdict::NotComparable => "–",
    }
}
