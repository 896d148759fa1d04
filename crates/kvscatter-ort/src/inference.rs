//! What the runtime knows of a node's inputs before any of them has a value.

use core::ffi::{CStr, c_char};
use core::ptr::{null, null_mut};

use kvscatter::ElementType;
use ort_sys::{OrtShapeInferContext, OrtTensorTypeAndShapeInfo};

use crate::attributes::InferenceAttributes;
use crate::operators::Operator;
use crate::runtime::{Runtime, element_type};
use crate::status::Failure;

/// Answers a question for an output's shape: it is that of input `cache`.
///
/// # Safety
/// `raw` is what the runtime asks with, and is used no longer than that call.
pub(crate) unsafe fn infer<O: Operator>(
    runtime: Runtime,
    raw: *mut OrtShapeInferContext,
    cache: usize,
) -> Result<(), Failure> {
    // SAFETY: the caller's.
    let attributes = unsafe { InferenceAttributes::new(runtime, raw) };
    let operator = O::new(&attributes)?;
    let mut count = 0;
    // SAFETY: the caller's; the number goes to a variable of ours.
    runtime.check(unsafe { (runtime.api.ShapeInferContext_GetInputCount)(raw, &raw mut count) })?;
    let mut inputs = Vec::with_capacity(count);
    for index in 0..count {
        let mut info = null_mut();
        // SAFETY: the caller's, and an input that there is; the answer goes to a pointer of ours.
        let status = unsafe { (runtime.api.ShapeInferContext_GetInputTypeShape)(raw, index, &raw mut info) };
        runtime.check(status)?;
        // SAFETY: what the runtime has just answered, and keeps during the call.
        inputs.push(unsafe { Known::new(runtime, info) }?);
    }
    operator.infer(&inputs)?;
    match inputs.get(cache) {
        Some(known) if known.can_be_said => {
            // SAFETY: the caller's; the description is one of the runtime's, which it copies.
            let status = unsafe { (runtime.api.ShapeInferContext_SetOutputTypeShape)(raw, 0, known.info) };
            runtime.check(status)
        }
        _ => Ok(()),
    }
}

/// What is known of an input.
pub(crate) struct Known {
    /// Its type.
    pub(crate) element: Option<ElementType>,
    /// Its dimensions, as far as they are numbers.
    pub(crate) sizes: Option<Vec<Option<usize>>>,
    /// The runtime takes an output's dimensions as names and numbers. One that is neither would become the number
    /// -1, and an unknown rank the rank 0.
    can_be_said: bool,
    info: *const OrtTensorTypeAndShapeInfo,
}

impl Known {
    /// # Safety
    /// `info` is a description of the runtime's that outlives the answer.
    unsafe fn new(runtime: Runtime, info: *const OrtTensorTypeAndShapeInfo) -> Result<Self, Failure> {
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
        let is_named = |&name: &*const c_char| {
            // SAFETY: a string of the description's, or none.
            !name.is_null() && !unsafe { CStr::from_ptr(name) }.is_empty()
        };
        let can_be_said =
            rank > 0 && numbers.iter().zip(&names).all(|(&number, name)| number >= 0 || is_named(name));
        let sizes = numbers.iter().map(|&number| usize::try_from(number).ok()).collect();
        // The runtime describes an unknown rank and a scalar alike, and no input of an operator is a scalar.
        Ok(Self { element: element_type(code), sizes: (rank > 0).then_some(sizes), can_be_said, info })
    }

    /// Its dimensions, if every one is known.
    pub(crate) fn whole(&self) -> Option<Vec<usize>> {
        self.sizes.as_ref()?.iter().copied().collect()
    }
}
