//! The shape of a custom operator's output: that of its cache.
//!
//! Nothing is refused here: runtimes up to 1.31 neither look at the status that this returns nor release it. What no
//! input could make right is refused when the kernel is made.

use core::ptr::null_mut;

use ort_sys::OrtShapeInferContext;

use crate::known::Known;
use crate::runtime::Runtime;
use crate::status::Failure;

/// Answers what the shape of the output is.
///
/// # Errors
/// Whatever the runtime says.
///
/// # Safety
/// `raw` is what the runtime asks with; it has an input `cache`.
pub(crate) unsafe fn infer(
    runtime: Runtime,
    raw: *mut OrtShapeInferContext,
    cache: usize,
) -> Result<(), Failure> {
    let mut info = null_mut();
    // SAFETY: the caller's; the answer goes to a pointer of ours.
    runtime.check(unsafe { (runtime.api.ShapeInferContext_GetInputTypeShape)(raw, cache, &raw mut info) })?;
    // SAFETY: what the runtime has just answered, and keeps during the call.
    let known = unsafe { Known::new(runtime, info) }?;
    if !known.every_dimension_is_said {
        // The runtime would take what is unknown for a dimension of -1, or for a scalar.
        return Ok(());
    }
    // SAFETY: the caller's; the description is one of the runtime's, which it copies.
    runtime.check(unsafe { (runtime.api.ShapeInferContext_SetOutputTypeShape)(raw, 0, info) })
}
