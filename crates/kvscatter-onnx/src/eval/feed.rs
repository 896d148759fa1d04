//! Values for the inputs of a graph.

use crate::Tensor;

/// A value for a graph input.
#[derive(Clone, Debug)]
pub enum Feed<'a> {
    /// A tensor that the caller keeps. It is not changed.
    Borrowed(&'a Tensor),
    /// A tensor that the caller gives up. The evaluation may write a cache in it in place and return it as an
    /// output at the same address. If an error occurs, the tensor is dropped.
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
