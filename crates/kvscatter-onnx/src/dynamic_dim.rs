//! Dimensions of inputs whose sizes a model leaves open.

use std::fmt;

/// An open dimension, for which no size was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicDim {
    /// The key under which a caller gives the size. See [`ValueInfo::dim_key`](crate::ValueInfo::dim_key).
    pub dim: String,
    /// The name of the first input that has the dimension.
    pub input: String,
}

/// A list that displays as `dimension "b" of input "x", dimension "h" of input "x"`.
pub(crate) struct DynamicDims<'a>(pub(crate) &'a [DynamicDim]);

impl fmt::Display for DynamicDims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, DynamicDim { dim, input }) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}dimension {dim:?} of input {input:?}")?;
        }
        Ok(())
    }
}
