//! Infers the shape of a custom operator's output, which is the shape of its cache.
//!
//! Nothing is refused here, because runtimes up to 1.31 neither read the status that this returns nor release
//! it. A model that is wrong for all inputs is refused when its kernel is made.

use core::ptr::null_mut;

use ort_sys::OrtShapeInferContext;

use crate::runtime::RuntimeApi;
use crate::status::Failure;
use crate::tensor_info::TensorInfo;

/// Sets the shape of the output to that of the cache.
///
/// # Errors
/// Returns the status of a function of the runtime that fails.
///
/// # Safety
/// `raw` is an object of the runtime, is valid until this returns, and has an input `cache`.
pub(crate) unsafe fn infer(
    runtime: RuntimeApi,
    raw: *mut OrtShapeInferContext,
    cache: usize,
) -> Result<(), Failure> {
    let mut info = null_mut();
    // SAFETY: `raw` is valid and has an input `cache`, by this function's contract, and `info` takes the
    // result (R1).
    runtime.check(unsafe { (runtime.api.ShapeInferContext_GetInputTypeShape)(raw, cache, &raw mut info) })?;
    // SAFETY: `info` is a part of `raw` (R2), which is valid by this function's contract.
    let cache_info = unsafe { TensorInfo::new(runtime, info) }?;
    if !cache_info.has_every_dimension {
        // The runtime would read unknown dimensions as -1, and an unknown rank as a scalar.
        return Ok(());
    }
    // SAFETY: `raw` is valid by this function's contract, and the runtime copies `info`, which is a part of
    // it (R1).
    runtime.check(unsafe { (runtime.api.ShapeInferContext_SetOutputTypeShape)(raw, 0, info) })
}
