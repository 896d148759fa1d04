//! Infers the shape of a custom operator's output from the shape of its cache.
//!
//! This does not reject any model, because runtimes up to 1.31 neither read nor release the status that it
//! returns. A model that is wrong for all inputs is rejected when its kernel is made.
//!
//! The conditions R1 to R6 that comments cite are defined in the crate's documentation.

use core::ptr::null_mut;

use ort_sys::OrtShapeInferContext;

use crate::runtime::RuntimeApi;
use crate::status::CallError;
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
) -> Result<(), CallError> {
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
