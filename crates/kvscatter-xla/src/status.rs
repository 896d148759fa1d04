//! Converts errors and panics to errors of XLA.

use core::any::Any;
use core::ffi::c_int;
use core::ptr::null_mut;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvscatter::error::ErrorClass;
use kvscatter::{Argument, Error};
use kvscatter_attention::AttentionError;
use kvscatter_cuda::CudaError;

use crate::sys::{
    self, Api, CallFrame, ErrorCreateArgs, ErrorDestroyArgs, INTERNAL, INVALID_ARGUMENT, METADATA,
    MetadataExtension, OUT_OF_RANGE, Version, XlaError,
};

/// An error of a call, before it becomes an error of XLA.
#[derive(Debug)]
pub(crate) struct CallError {
    code: c_int,
    message: String,
}

impl CallError {
    /// Creates an error about the compiled program, which `kvscatter.jax` would not make.
    pub(crate) fn program(message: impl Into<String>) -> Self {
        Self { code: INVALID_ARGUMENT, message: message.into() }
    }
}

/// Returns the name of an argument in `kvscatter.jax`.
fn name(argument: Argument) -> &'static str {
    match argument {
        Argument::PastCache => "past",
        Argument::PresentCache => "present",
        other => other.name(),
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        let code = if error.kind().class() == ErrorClass::Position { OUT_OF_RANGE } else { INVALID_ARGUMENT };
        Self { code, message: error.display_with(name).to_string() }
    }
}

impl From<AttentionError> for CallError {
    fn from(error: AttentionError) -> Self {
        let is_position = matches!(
            error,
            AttentionError::LengthOutOfRange { .. }
                | AttentionError::NegativeStart { .. }
                | AttentionError::BlockOutOfRange { .. }
        );
        let code = if is_position { OUT_OF_RANGE } else { INVALID_ARGUMENT };
        Self { code, message: error.python_message() }
    }
}

impl From<CudaError> for CallError {
    fn from(error: CudaError) -> Self {
        if let CudaError::Write(refused) = error {
            return refused.into();
        }
        // The launch found a bad position, but the lists no longer contain it.
        let code = if matches!(error, CudaError::BadIndices { .. }) { OUT_OF_RANGE } else { INTERNAL };
        Self { code, message: error.to_string() }
    }
}

/// Runs a call, or tells XLA the version of this handler if it asks for it. A failure or a panic becomes the error
/// that the handler returns, and null is success.
///
/// # Safety
/// The frame satisfies F1 to F4.
pub(crate) unsafe fn guarded(
    frame: &CallFrame,
    run: impl FnOnce(&CallFrame) -> Result<(), CallError>,
) -> *mut XlaError {
    // SAFETY: An extension is valid if there is one (F1).
    if unsafe { frame.extension.as_ref() }.is_some_and(|extension| extension.kind == METADATA) {
        // SAFETY: An extension of this kind has metadata (F1).
        let extension = unsafe { &*frame.extension.cast::<MetadataExtension>() };
        // SAFETY: The metadata to fill in are valid (F1).
        let metadata = unsafe { &mut *extension.metadata };
        let version = Version {
            struct_size: size_of::<Version>(),
            extension: null_mut(),
            major: sys::MAJOR,
            minor: sys::MINOR,
        };
        (metadata.version, metadata.traits) = (version, 0);
        return null_mut();
    }
    let failure = match catch_unwind(AssertUnwindSafe(|| run(frame))) {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(failure)) => failure,
        Err(payload) => {
            discard(payload);
            let message = "kvscatter panicked, which is a bug: please report it".to_owned();
            CallError { code: INTERNAL, message }
        }
    };
    // A C string ends at the first NUL.
    let text = CString::new(failure.message.replace('\0', "\u{fffd}")).unwrap_or_default();
    let mut args = ErrorCreateArgs {
        struct_size: size_of::<ErrorCreateArgs>(),
        extension: null_mut(),
        message: text.as_ptr(),
        code: failure.code,
    };
    // SAFETY: The table is valid (F4).
    let api = unsafe { &*frame.api };
    // SAFETY: The function copies the text (F4).
    unsafe { (api.error_create)(&raw mut args) }
}

/// Returns `true` for no error, and destroys an error.
pub(crate) fn is_ok(api: &Api, error: *mut XlaError) -> bool {
    if error.is_null() {
        return true;
    }
    let mut args =
        ErrorDestroyArgs { struct_size: size_of::<ErrorDestroyArgs>(), extension: null_mut(), error };
    // SAFETY: The error is valid, and nothing uses it later (F4).
    unsafe { (api.error_destroy)(&raw mut args) };
    false
}

/// Drops the payload of a panic. If the drop panics too, the second payload is leaked.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        core::mem::forget(again);
    }
}
