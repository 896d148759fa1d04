//! The lists of a launch, and the first bad index in one.

use std::fmt::{self, Display};

/// What a launch reads on the device beside its updates, and where it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum List {
    /// Positions, or slots.
    Positions,
    /// Rows that are written.
    Lengths,
    /// Rows that samples bring: `updateLengths` or `seqLen`.
    RowCounts,
    /// The layer's number.
    Layer,
    /// The status.
    Status,
}

impl Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Positions => "the list of starts",
            Self::Lengths => "the list of lengths",
            Self::RowCounts => "the list of rows for each sample",
            Self::Layer => "the layer",
            Self::Status => "the status",
        })
    }
}

/// The first bad index that a status has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstBad {
    /// Where it lies: of a slot mapping, among the starts.
    pub list: List,
    /// Whose it is, counted from 0, or the token of a slot mapping. The layer is nobody's; rows of one behind the last
    /// sample are the sum of all.
    pub sample: Option<usize>,
    /// The bad value. Of cumulative lengths it is the sample's rows, number `i + 1` less number `i`; the first number
    /// where that is not 0; or the last one, where it is not the number of tokens.
    pub value: i64,
}

impl Display for FirstBad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.list {
            List::Lengths => "the length",
            List::RowCounts => "the rows",
            List::Layer => "the layer",
            List::Positions | List::Status => "the position",
        })?;
        if let Some(sample) = self.sample {
            write!(f, " of sample {sample}")?;
        }
        write!(f, ": {}", self.value)
    }
}
