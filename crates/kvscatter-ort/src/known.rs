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

    /// Its dimensions, if every one is a number.
    pub(crate) fn whole(&self) -> Option<Vec<usize>> {
        self.sizes.as_ref()?.iter().copied().collect()
    }
}
