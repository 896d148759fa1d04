//! Words and numbers that all drawings use.

use core::ops::Range;
use core::{fmt, iter};

use super::model::Lane;

/// The text for a lane in which no slot is written.
pub(super) const UNTOUCHED: &str = "nothing written";

/// The first and the last slot of a run.
pub(super) struct Ends<'a>(pub(super) &'a Range<usize>);

impl fmt::Display for Ends<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.0;
        match end.saturating_sub(1) {
            last if last == *start => write!(f, "{start}"),
            last => write!(f, "{start}-{last}"),
        }
    }
}

/// The slots that the last written token of a lane sees, after a comma. Empty if there are none.
pub(super) struct Sees<'a>(pub(super) &'a Lane);

impl fmt::Display for Sees<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = iter::once(", sees ").chain(iter::repeat(", "));
        self.0.seen().zip(words).try_for_each(|(run, words)| write!(f, "{words}{}", Ends(run)))
    }
}

/// Returns the plural ending of a noun, if the count needs one.
pub(super) const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

pub(super) fn digits(number: usize) -> usize {
    1_usize.saturating_add(number.checked_ilog10().and_then(|log| log.try_into().ok()).unwrap_or(0))
}
