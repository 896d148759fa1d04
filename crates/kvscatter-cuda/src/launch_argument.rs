//! The arguments of a launch besides its tensors, and the first bad index in one of its lists.

use std::fmt::{self, Display};

/// An argument of a launch besides its tensors: a list, the layer, or the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[non_exhaustive]
pub enum LaunchArgument {
    /// The list of positions, or of the slots of a slot mapping.
    #[strum(to_string = "the list of positions")]
    Positions,
    /// The list with the number of rows of each sample that are written.
    #[strum(to_string = "the list of lengths")]
    Lengths,
    /// The list with the number of rows that the update brings for each sample: `updateLengths` or `seqLen`.
    #[strum(to_string = "the list of row counts")]
    RowCounts,
    /// The number of the layer, `layerId`.
    #[strum(to_string = "the layer")]
    Layer,
    /// The 16 bytes of the status, in which launches count bad indices.
    #[strum(to_string = "the status")]
    Status,
}

/// The first bad index that a status records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstBad {
    /// The list that contains the bad value. The slots of a slot mapping are positions.
    pub list: LaunchArgument,
    /// The sample, counted from 0, or the token of a slot mapping. `None` if the layer is bad. If the sum of
    /// all row counts is bad, this is the number of samples.
    pub sample: Option<usize>,
    /// The bad value. For cumulative lengths, it is one of these:
    ///
    /// * the first value, if it is not 0
    /// * the last value, if it is not the number of tokens
    /// * otherwise, the difference of the two values that enclose the sample
    pub value: i64,
}

impl Display for FirstBad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.list {
            LaunchArgument::Lengths => "the length",
            LaunchArgument::RowCounts => "the row count",
            LaunchArgument::Layer => "the layer",
            LaunchArgument::Positions | LaunchArgument::Status => "the position",
        })?;
        if let Some(sample) = self.sample {
            write!(f, " of sample {sample}")?;
        }
        write!(f, ": {}", self.value)
    }
}
