//! Formats a verdict as text.

use std::fmt;

use super::finding::{FailedCase, Finding};
use super::judge::{CaseVerdict, Verdict};
use crate::output::{hanging, one_line, quoted, styled};

/// The columns of a verdict.
const INDENT: usize = 6;

impl FailedCase {
    /// The command that draws the write.
    pub(super) fn picture(&self) -> Option<String> {
        let dir = self.drawn.as_ref()?;
        Some(format!("kvscatter run {}", quoted(&dir.display().to_string())))
    }

    /// Returns the finding in words. If only the call in place is wrong, these are the words of its fault.
    pub(super) fn reason(&self) -> String {
        match (&self.finding, &self.in_place) {
            (Finding::InPlace, Some(fault)) => fault.to_string(),
            (finding, _) => finding.to_string(),
        }
    }

    /// Returns the lines below the line of the case. The command stays in one line, so that it can be copied.
    fn details(&self) -> Vec<String> {
        let line = |text: String| hanging(INDENT, &one_line(&text));
        let is_finding = matches!(self.finding, Finding::InPlace);
        let in_place = self.in_place.as_ref().filter(|_| !is_finding).map(|fault| line(fault.to_string()));
        let call = self.call.as_ref().map(|call| line(call.to_string()));
        let slots = self.slots.as_ref().map(|slots| line(slots.to_string()));
        let picture = self.picture().map(|command| format!("picture: {}", one_line(&command)));
        [slots, in_place, call, picture].into_iter().flatten().collect()
    }
}

impl fmt::Display for CaseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = one_line(&self.case);
        let after =
            |text: String| hanging(INDENT, &format!("{case}: {}", one_line(&text))).trim_start().to_owned();
        match &self.judged.verdict {
            Verdict::Pass => write!(f, "{}  {case}", styled("pass", anstyle::AnsiColor::Green)),
            Verdict::Fail(failed) => {
                let fail = styled("FAIL", anstyle::AnsiColor::Red);
                let reason = failed.reason();
                let note = self.note.as_ref().and_then(|note| note.text_after(&reason));
                let note = note.map(|text| hanging(INDENT, &one_line(&text)));
                write!(f, "{fail}  {}", after(reason))?;
                note.iter().chain(&failed.details()).try_for_each(|line| write!(f, "\n{:INDENT$}{line}", ""))
            }
            Verdict::Unreadable(error) => {
                write!(f, "{}  {}", styled("ERR ", anstyle::AnsiColor::Yellow), after(error.to_string()))
            }
        }
    }
}
