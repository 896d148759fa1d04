//! What is known of a tensor before any shape is certain, and sizes that fit where nothing is known.

use alloc::vec;
use alloc::vec::Vec;

use super::operands::{check_accepted, same_element_type};
use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::Error;

/// A dimension as a model may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension<'a> {
    /// A number (`dim_value`).
    Known(usize),
    /// A name (`dim_param`), such as `batch`.
    Symbolic(&'a str),
    /// Nothing.
    Unknown,
}

/// What is known of an input or output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialTensor<'a> {
    /// The element type.
    pub element: Option<ElementType>,
    /// The dimensions, if at least their number is known.
    pub shape: Option<&'a [Dimension<'a>]>,
}

impl Dimension<'_> {
    /// Returns the number, if it is known.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Known(size) => Some(size),
            Self::Symbolic(_) | Self::Unknown => None,
        }
    }
}

impl PartialTensor<'_> {
    /// Returns the known sizes of the dimensions, if at least the number of dimensions is known.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<Option<usize>>> {
        Some(self.shape?.iter().map(|dimension| dimension.size()).collect())
    }

    /// Returns the known sizes of the dimensions, or `rank` unknown ones if their number is not known.
    pub(super) fn sizes_or(&self, rank: usize) -> Vec<Option<usize>> {
        self.sizes().unwrap_or_else(|| vec![None; rank])
    }

    /// Returns the known size of one dimension.
    pub(super) fn size(&self, dimension: usize) -> Option<usize> {
        self.shape?.get(dimension)?.size()
    }

    /// Checks that another tensor has the element type of this one, a cache, if both are known.
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

    /// Checks what is known of a list of indices: its type, its rank, and that it has `expected` values.
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
/// `pairs` are the dimensions of `one` and `other` that must agree. A size that is unknown becomes the size of its
/// counterpart, or 1 where that is unknown too or there is none. A rule that refuses the result refuses every pair
/// of shapes with the known sizes.
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::fill_unknown;

    #[test]
    fn sizes_unknown_on_both_sides_are_1() {
        let (cache, update) = (vec![None, Some(8), None], vec![Some(2), None, None]);
        let pairs = [(0, 0), (1, 1), (2, 2)];
        assert_eq!(fill_unknown(cache, update, &pairs), (vec![2, 8, 1], vec![2, 8, 1]));
    }

    #[test]
    fn unknown_sizes_come_from_their_counterparts() {
        let filled = fill_unknown(
            vec![None, Some(2), None, Some(4)],
            vec![Some(3), None, None, Some(5)],
            &[(0, 0), (1, 1), (2, 2), (3, 3)],
        );
        assert_eq!(filled, (vec![3, 2, 1, 4], vec![3, 2, 1, 5]), "known sizes stay as they are");
    }

    #[test]
    fn pairs_may_cross_and_may_be_out_of_range() {
        let filled = fill_unknown(vec![Some(9), None, Some(7)], vec![Some(5), None], &[(1, 0), (2, 1)]);
        assert_eq!(filled, (vec![9, 5, 7], vec![5, 7]));
        assert_eq!(fill_unknown(vec![Some(7)], vec![], &[(0, 0), (3, 1)]), (vec![7], vec![]));
        assert_eq!(fill_unknown(vec![None], vec![None], &[]), (vec![1], vec![1]));
    }
}
