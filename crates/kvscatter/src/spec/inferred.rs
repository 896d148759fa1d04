//! Partly known tensors, for checks before any shape is certain, and sizes that fit where a size is unknown.

use alloc::vec;
use alloc::vec::Vec;

use super::operands::{check_accepted, same_element_type};
use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::Error;

/// A dimension of a tensor in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension<'a> {
    /// The size is a number (`dim_value`).
    Known(usize),
    /// The size has a name (`dim_param`), such as `batch`.
    Symbolic(&'a str),
    /// The size is unknown.
    Unknown,
}

/// The known facts about an input or output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialTensor<'a> {
    /// The element type, if it is known.
    pub element: Option<ElementType>,
    /// The dimensions, if at least their number is known.
    pub shape: Option<&'a [Dimension<'a>]>,
}

impl Dimension<'_> {
    /// Returns the size, if it is a known number.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Known(size) => Some(size),
            Self::Symbolic(_) | Self::Unknown => None,
        }
    }
}

impl PartialTensor<'_> {
    /// Returns the known sizes of the dimensions, if their number is known.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<Option<usize>>> {
        Some(self.shape?.iter().map(|dimension| dimension.size()).collect())
    }

    /// Returns the known sizes of the dimensions, or `rank` unknown sizes if the number of dimensions is
    /// unknown.
    pub(super) fn sizes_or(&self, rank: usize) -> Vec<Option<usize>> {
        self.sizes().unwrap_or_else(|| vec![None; rank])
    }

    pub(super) fn size(&self, dimension: usize) -> Option<usize> {
        self.shape?.get(dimension)?.size()
    }

    /// Checks that another tensor has the element type of this cache, if both types are known.
    pub(super) fn check_same_element(
        &self,
        argument: Argument,
        other: PartialTensor<'_>,
    ) -> Result<(), Error> {
        match (self.element, other.element) {
            (Some(cache), Some(element)) => same_element_type(cache, argument, element).map(drop),
            _ => Ok(()),
        }
    }

    /// Checks the known facts about a list of indices: its type, its rank and its number of values, which
    /// must be `expected`.
    pub(super) fn check_indices(
        &self,
        argument: Argument,
        accepted: &'static [ElementType],
        expected: Option<usize>,
    ) -> Result<(), Error> {
        self.element.map_or(Ok(()), |element| check_accepted(argument, element, accepted))?;
        match (self.shape, expected) {
            (Some(&[Dimension::Known(got)]), Some(expected)) if got != expected => {
                Err(Error::ListLength { argument, got, expected })
            }
            (None | Some([_]), _) => Ok(()),
            (Some(shape), _) => Err(Error::Rank { argument, rank: shape.len(), expected: &[1] }),
        }
    }
}

/// Fills in the unknown sizes of two tensors so that they fit each other.
///
/// `pairs` contains the dimensions of `one` and `other` that must agree. An unknown size becomes the size of
/// its counterpart, or 1 if the counterpart is also unknown or does not exist. If a rule rejects the result,
/// it rejects every pair of shapes with the known sizes.
pub(super) fn fill_unknown(
    mut one: Vec<Option<usize>>,
    mut other: Vec<Option<usize>>,
    pairs: &[(usize, usize)],
) -> (Vec<usize>, Vec<usize>) {
    for &(in_one, in_other) in pairs {
        if let (Some(size), Some(counterpart)) = (one.get_mut(in_one), other.get_mut(in_other)) {
            *size = size.or(*counterpart);
            *counterpart = counterpart.or(*size);
        }
    }
    let or_one = |sizes: Vec<Option<usize>>| sizes.into_iter().map(|size| size.unwrap_or(1)).collect();
    (or_one(one), or_one(other))
}
