//! Values for the inputs of a graph.

use crate::Tensor;

/// A value for a graph input.
#[derive(Clone, Debug)]
pub enum Feed<'a> {
    /// The caller keeps it, unchanged.
    Borrowed(&'a Tensor),
    /// The caller gives it up: a cache in it may be written in place, and comes back as an output at the same
    /// address. An error drops it.
    Donated(Tensor),
}

impl Feed<'_> {
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Borrowed(tensor) => tensor,
            Self::Donated(tensor) => tensor,
        }
    }
}
