//! The shape of a custom operator's output: that of its cache.
//!
//! Nothing is refused here, because runtimes up to 1.31 neither read the status that this returns nor release it. Models
//! that are wrong for all inputs are refused when the kernel is made.

use core::ptr::null_mut;

use ort_sys::OrtShapeInferContext;

use crate::runtime::Runtime;
use crate::status::Failure;
use crate::tensor_info::TensorInfo;

/// Sets the shape of the output to that of the cache.
///
/// # Errors
/// The status of a function of the runtime.
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
    let cache_info = unsafe { TensorInfo::new(runtime, info) }?;
    if !cache_info.has_every_dimension {
        // The runtime would read unknown dimensions as -1, and an unknown rank as a scalar.
        return Ok(());
    }
    // SAFETY: the caller's; the description is one of the runtime's, which it copies.
    runtime.check(unsafe { (runtime.api.ShapeInferContext_SetOutputTypeShape)(raw, 0, info) })
}
