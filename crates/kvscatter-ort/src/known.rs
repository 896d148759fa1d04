//! What is known of a tensor before it has a value.

use core::ffi::{CStr, c_char};
use core::ptr::null;

use kvscatter::ElementType;
use ort_sys::OrtTensorTypeAndShapeInfo;

use crate::runtime::{Runtime, element_type};
use crate::status::Failure;

/// A tensor's type and shape, as far as the runtime knows them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Its element type.
    pub(crate) element: Option<ElementType>,
    /// Its dimensions, if at least their number is known.
    pub(crate) sizes: Option<Vec<Option<usize>>>,
    /// Whether every dimension is a number or a name.
    pub(crate) every_dimension_is_said: bool,
}

impl Known {
    /// # Errors
    /// Whatever the runtime says.
    ///
    /// # Safety
    /// `info` is a description of the runtime's.
    pub(crate) unsafe fn new(
        runtime: Runtime,
        info: *const OrtTensorTypeAndShapeInfo,
    ) -> Result<Self, Failure> {
        let (mut code, mut rank) = (0_i32, 0);
        let code_out = (&raw mut code).cast();
        // SAFETY: the caller's; the type goes to a number of the size that the header's enumeration has.
        runtime.check(unsafe { (runtime.api.GetTensorElementType)(info, code_out) })?;
        // SAFETY: the caller's; the number goes to a variable of ours.
        runtime.check(unsafe { (runtime.api.GetDimensionsCount)(info, &raw mut rank) })?;
        let mut numbers = vec![-1_i64; rank];
        // SAFETY: the caller's; there is room for as many.
        runtime.check(unsafe { (runtime.api.GetDimensions)(info, numbers.as_mut_ptr(), rank) })?;
        let mut names = vec![null::<c_char>(); rank];
        // SAFETY: as above.
        runtime.check(unsafe { (runtime.api.GetSymbolicDimensions)(info, names.as_mut_ptr(), rank) })?;
        let is_name = |&name: &*const c_char| {
            // SAFETY: a string of the description's, or none.
            !name.is_null() && !unsafe { CStr::from_ptr(name) }.is_empty()
        };
        let mut dimensions = numbers.iter().zip(&names);
        let every_dimension_is_said =
            rank > 0 && dimensions.all(|(&number, name)| number >= 0 || is_name(name));
        let sizes = numbers.iter().map(|&number| usize::try_from(number).ok()).collect();
        // An unknown rank is described like that of a scalar, and no input of an operator is a scalar.
        let sizes = (rank > 0).then_some(sizes);
        Ok(Self { element: element_type(code), sizes, every_dimension_is_said })
    }

    /// Its dimensions; so many unknown ones if not even their number is known.
    pub(crate) fn sizes_or(&self, rank: usize) -> Vec<Option<usize>> {
        self.sizes.clone().unwrap_or_else(|| vec![None; rank])
    }
}

/// The sizes of two tensors as they may turn out to be: a dimension that is not known is the one that it must agree
/// with, by these pairs, or 1. What is refused for such sizes is refused for what is known of them.
pub(crate) fn fitting(
    mut one: Vec<Option<usize>>,
    mut other: Vec<Option<usize>>,
    pairs: &[(usize, usize)],
) -> (Vec<usize>, Vec<usize>) {
    for &(in_one, in_other) in pairs {
        if let (Some(size), Some(of_other)) = (one.get_mut(in_one), other.get_mut(in_other)) {
            *size = size.or(*of_other);
            *of_other = of_other.or(*size);
        }
    }
    let sizes =
        |dimensions: Vec<Option<usize>>| dimensions.into_iter().map(|size| size.unwrap_or(1)).collect();
    (sizes(one), sizes(other))
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn what_is_not_known_fits() {
        let fit = fitting(
            vec![None, Some(2), None, Some(4)],
            vec![Some(3), None, None, Some(5)],
            &[(0, 0), (1, 1), (2, 2), (3, 3)],
        );
        assert_eq!(fit, (vec![3, 2, 1, 4], vec![3, 2, 1, 5]));
        assert_eq!(fitting(vec![Some(7)], vec![], &[(0, 0), (3, 1)]), (vec![7], vec![]));
    }
}
