//! The types and shapes of tensors that have no values yet.

use core::ffi::{CStr, c_char};
use core::ptr::null;

use kvscatter::ElementType;
use kvscatter::spec::{Dimension, PartialTensor};
use ort_sys::{OrtTensorTypeAndShapeInfo, OrtTypeInfo};

use crate::runtime::{RuntimeApi, element_type};
use crate::status::CallError;

/// The type and shape of a tensor, as far as the model declares them.
#[derive(Debug, Default)]
pub(crate) struct TensorInfo {
    /// Whether the node has the tensor.
    is_present: bool,
    element: Option<ElementType>,
    /// The dimensions, if at least their number is known. Names are left out, because no rule reads them.
    shape: Option<Vec<Dimension<'static>>>,
    /// Whether each dimension has a number or a name. `false` if the rank is unknown.
    pub(crate) has_every_dimension: bool,
}

impl TensorInfo {
    /// Creates a description from the runtime's type of a value. If the value is no tensor, only its presence is known.
    ///
    /// # Safety
    /// `info` is an object of the runtime and valid until this returns.
    pub(crate) unsafe fn from_type(runtime: RuntimeApi, info: *const OrtTypeInfo) -> Result<Self, CallError> {
        // SAFETY: `info` is valid by this function's contract, and `out` takes the result (R1).
        let call = |out| unsafe { (runtime.api.CastTypeInfoToTensorInfo)(info, out) };
        let tensor = runtime.result(null(), call)?;
        if tensor.is_null() {
            return Ok(Self { is_present: true, ..Self::default() });
        }
        // SAFETY: `tensor` is a part of `info` (R5), which is valid by this function's contract.
        unsafe { Self::new(runtime, tensor) }
    }

    /// Creates a description from the runtime's type and shape of a tensor.
    ///
    /// # Safety
    /// `info` is an object of the runtime and valid until this returns.
    pub(crate) unsafe fn new(
        runtime: RuntimeApi,
        info: *const OrtTensorTypeAndShapeInfo,
    ) -> Result<Self, CallError> {
        // SAFETY: `info` is valid by this function's contract. `out` takes the result (R1) and has the size of the
        // header's enumeration.
        let call = |out: *mut i32| unsafe { (runtime.api.GetTensorElementType)(info, out.cast()) };
        let code = runtime.result(0, call)?;
        // SAFETY: `info` is valid by this function's contract, and `out` takes the result (R1).
        let rank = runtime.result(0, |out| unsafe { (runtime.api.GetDimensionsCount)(info, out) })?;
        let mut numbers = vec![-1_i64; rank];
        // SAFETY: `info` is valid by this function's contract, and `numbers` has room for `rank` results
        // (R1).
        runtime.check(unsafe { (runtime.api.GetDimensions)(info, numbers.as_mut_ptr(), rank) })?;
        let mut names = vec![null::<c_char>(); rank];
        // SAFETY: `info` is valid by this function's contract, and `names` has room for `rank` results (R1).
        runtime.check(unsafe { (runtime.api.GetSymbolicDimensions)(info, names.as_mut_ptr(), rank) })?;
        let is_name = |&name: &*const c_char| {
            // SAFETY: `name` is not NULL, so it is a string of `info`, which ends in a zero byte and lives as
            // long as `info` (R5).
            !name.is_null() && !unsafe { CStr::from_ptr(name) }.is_empty()
        };
        let mut dimensions = numbers.iter().zip(&names);
        let has_every_dimension = rank > 0 && dimensions.all(|(&number, name)| number >= 0 || is_name(name));
        let dimension = |&number: &i64| usize::try_from(number).map_or(Dimension::Unknown, Dimension::Known);
        // The runtime describes an unknown rank like that of a scalar, and no input of an operator is a
        // scalar.
        let shape = (rank > 0).then(|| numbers.iter().map(dimension).collect());
        Ok(Self { is_present: true, element: element_type(code), shape, has_every_dimension })
    }

    /// Creates a description for a test. A dimension of `None` is unknown.
    #[cfg(test)]
    pub(crate) fn with_shape(element: ElementType, shape: &[Option<usize>]) -> Self {
        let dimension = |size: &Option<usize>| size.map_or(Dimension::Unknown, Dimension::Known);
        let shape = Some(shape.iter().map(dimension).collect());
        Self { is_present: true, element: Some(element), shape, has_every_dimension: false }
    }

    /// Returns the type and shape as a tensor of the core. Both are unknown for an absent input.
    pub(crate) fn partial(&self) -> PartialTensor<'_> {
        PartialTensor { element: self.element, shape: self.shape.as_deref() }
    }

    /// Returns the element type. It is unknown for an absent input.
    pub(crate) fn element(&self) -> Option<ElementType> {
        self.element
    }

    /// Returns the number of dimensions, if it is known.
    pub(crate) fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// Returns a dimension, if it is known.
    pub(crate) fn size(&self, index: usize) -> Option<usize> {
        self.shape.as_ref()?.get(index)?.size()
    }

    /// Returns the dimensions, if all of them are known.
    pub(crate) fn sizes(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(|dimension| dimension.size()).collect()
    }

    /// Returns `true` if the node has this input.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present
    }
}
