//! The words for what an implementation did with a case.

use serde::Serialize;
use strum::IntoStaticStr;

/// The answer of another implementation to a call.
///
/// [`Clamps`](Self::Clamps) to [`DropsRows`](Self::DropsRows) name what an implementation did with a call that it must
/// refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
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
    #[strum(serialize = "drops rows")]
    DropsRows,
    Crashes,
    Timeout,
}

/// The result of a call that may write into the memory of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(super) enum InPlace {
    /// The buffer is right. After a refusal it is unchanged.
    Exact,
    /// The present is right, but it is not in the memory of the past.
    #[strum(serialize = "copied")]
    Copies,
    /// The call was refused, and the buffer changed.
    #[strum(serialize = "partly written")]
    PartlyWritten,
    #[strum(serialize = "different")]
    Differs,
    /// The model reads the past after the write, but the past changed.
    #[strum(serialize = "with a corrupted past")]
    CorruptsPast,
    /// A valid call was refused.
    #[strum(serialize = "wrongly refused")]
    Refuses,
    #[strum(serialize = "crashed")]
    Crashes,
    #[strum(serialize = "out of time")]
    Timeout,
    /// The implementation has no such call.
    #[strum(serialize = "not possible")]
    NotPossible,
}

impl Answer {
    /// Returns the word of a behaviour, from [`Clamps`](Self::Clamps) to [`DropsRows`](Self::DropsRows).
    pub(super) fn word(self) -> &'static str {
        self.into()
    }
}

impl InPlace {
    /// Returns the word after a number of cases.
    pub(super) fn word(self) -> &'static str {
        self.into()
    }
}
