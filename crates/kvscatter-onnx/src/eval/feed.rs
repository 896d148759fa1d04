//! Values for the inputs of a graph.

use crate::Tensor;

/// A value for a graph input.
#[derive(Clone, Debug)]
pub enum Feed<'a> {
    /// A tensor that the caller keeps and that the evaluation does not change.
    Borrowed(&'a Tensor),
    /// A tensor that the caller gives up. The evaluation may write a cache in it in place and return it as an
    /// output at the same address. The tensor is dropped if an error occurs.
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
