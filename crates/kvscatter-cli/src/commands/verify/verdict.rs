//! The words for what an implementation did with a case.

use serde::Serialize;

/// The answer of another implementation to a call.
///
/// [`Clamps`](Self::Clamps) to [`DropsRows`](Self::DropsRows) name what an implementation did with a call that it must
/// refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The outputs are right, or the call was refused as it must be.
    Exact,
    Differs,
    /// A valid call was refused.
    Refuses,
    /// A call that must be refused has an output, and none of the names below fits.
    Accepts,
    /// The rows went to the nearest slots inside the cache.
    Clamps,
    /// The slots were taken modulo the capacity, or a negative index was counted from the end.
    Wraps,
    /// The samples that do not fit are unchanged, and the others are written.
    Skips,
    /// The whole cache is unchanged.
    Ignores,
    /// The rows outside the cache are left out, and the others are written.
    DropsRows,
    Crashes,
    Timeout,
}

/// The result of a call that may write into the memory of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum InPlace {
    /// The buffer is right. After a refusal it is unchanged.
    Exact,
    /// The present is right, but it is not in the memory of the past.
    Copies,
    /// The call was refused, and the buffer changed.
    PartlyWritten,
    Differs,
    /// The model reads the past after the write, but the past changed.
    CorruptsPast,
    /// A valid call was refused.
    Refuses,
    Crashes,
    Timeout,
    /// The implementation has no such call.
    NotPossible,
}

impl Answer {
    /// Returns the word in a sentence.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Exact => "is exact",
            Self::Differs => "differs",
            Self::Refuses => "refuses",
            Self::Accepts => "accepts",
            Self::Clamps => "clamps",
            Self::Wraps => "wraps",
            Self::Skips => "skips",
            Self::Ignores => "ignores",
            Self::DropsRows => "drops rows",
            Self::Crashes => "crashes",
            Self::Timeout => "runs out of time",
        }
    }
}

impl InPlace {
    /// Returns the word after a number of cases.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Copies => "copied",
            Self::PartlyWritten => "partly written",
            Self::Differs => "different",
            Self::CorruptsPast => "with a corrupted past",
            Self::Refuses => "wrongly refused",
            Self::Crashes => "crashed",
            Self::Timeout => "out of time",
            Self::NotPossible => "not possible",
        }
    }
}
