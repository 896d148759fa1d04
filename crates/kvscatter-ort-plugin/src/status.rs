//! Converts errors and panics to statuses of the runtime.

use core::any::Any;
use core::ffi::{CStr, c_char};
use core::ptr::{NonNull, null_mut};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvscatter::{Argument, Error};
use kvscatter_attention::AttentionError;
use ort_sys::{OrtApi, OrtErrorCode, OrtStatus, OrtStatusPtr};

/// Runs the body of a function that the runtime calls. A panic or a failure becomes the status that the
/// function returns.
pub(crate) fn guarded(api: &'static OrtApi, body: impl FnOnce() -> Result<(), CallError>) -> OrtStatusPtr {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OrtStatusPtr(null_mut()),
        Ok(Err(failure)) => failure.into_status(api),
        Err(payload) => {
            discard(payload);
            CallError::fail("kvscatter panicked, which is a bug: please report it").into_status(api)
        }
    }
}

/// Runs the body of a function that returns no status, and discards a panic.
pub(crate) fn catch_panic(body: impl FnOnce()) {
    // The panic hook has written the message to the standard error.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        discard(payload);
    }
}

/// Drops the payload of a panic. If the drop panics too, the second payload is leaked.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        core::mem::forget(again);
    }
}

/// An error of a call, before it becomes a status.
pub(crate) enum CallError {
    /// A status of the runtime that is returned unchanged.
    Runtime(Status),
    /// An error of the core, whose message comes from the operator.
    Core(Error),
    /// An error of this crate about an argument, whose name comes from the operator.
    Argument {
        /// The argument, whose name is put before `problem`.
        argument: Argument,
        /// The message without the argument's name at its beginning.
        problem: String,
    },
    /// An error of this crate that is not about an argument.
    Refused {
        /// The code, which decides the class of exception in language bindings.
        code: OrtErrorCode,
        /// A message of one line.
        message: String,
    },
}

impl CallError {
    /// Creates a failure with the code `FAIL`, which the runtime's own kernels use for inputs that do not
    /// fit.
    pub(crate) fn fail(message: impl Into<String>) -> Self {
        Self::Refused { code: OrtErrorCode::ORT_FAIL, message: message.into() }
    }

    /// Creates a failure whose message begins with the name of an argument.
    pub(crate) fn argument(argument: Argument, problem: impl Into<String>) -> Self {
        Self::Argument { argument, problem: problem.into() }
    }

    /// Creates a failure for a model that is wrong for all inputs.
    pub(crate) fn invalid_argument(message: impl Into<String>) -> Self {
        Self::Refused { code: OrtErrorCode::ORT_INVALID_ARGUMENT, message: message.into() }
    }

    /// Converts a status to a result that owns the status.
    pub(crate) fn from_status(api: &'static OrtApi, status: OrtStatusPtr) -> Result<(), Self> {
        match NonNull::new(status.0) {
            None => Ok(()),
            Some(raw) => Err(Self::Runtime(Status { api, raw })),
        }
    }

    /// Converts the failure to a status that the runtime owns.
    fn into_status(self, api: &'static OrtApi) -> OrtStatusPtr {
        match self {
            Self::Runtime(status) => status.into_raw(),
            Self::Core(_) | Self::Argument { .. } => Self::fail(self.to_string()).into_status(api),
            Self::Refused { code, message } => new_status(api.CreateStatus, code, &message),
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<AttentionError> for CallError {
    fn from(error: AttentionError) -> Self {
        Self::fail(error.to_string())
    }
}

impl core::fmt::Display for CallError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Runtime(status) => f.write_str(&status.message()),
            Self::Core(error) => error.fmt(f),
            Self::Argument { argument, problem } => write!(f, "{argument} {problem}"),
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl core::fmt::Debug for CallError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// A status that the runtime made and this library owns.
pub(crate) struct Status {
    api: &'static OrtApi,
    raw: NonNull<OrtStatus>,
}

impl Status {
    fn message(&self) -> String {
        // SAFETY: `self.raw` is a status that is not released yet.
        let text = unsafe { (self.api.GetErrorMessage)(self.raw.as_ptr()) };
        // SAFETY: `text` is a string of the status, which ends in a zero byte and lives as long as the status
        // (R5).
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn into_raw(self) -> OrtStatusPtr {
        let raw = self.raw;
        core::mem::forget(self);
        OrtStatusPtr(raw.as_ptr())
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: `self.raw` is a status that is not released yet, and this is its last use.
        unsafe { (self.api.ReleaseStatus)(self.raw.as_ptr()) };
    }
}

/// The type of `OrtApi::CreateStatus`, which every version of the runtime has.
type CreateStatusFn = unsafe extern "system" fn(code: OrtErrorCode, text: *const c_char) -> OrtStatusPtr;

/// Creates a status that belongs to the runtime to which it is returned.
pub(crate) fn new_status(create: CreateStatusFn, code: OrtErrorCode, message: &str) -> OrtStatusPtr {
    // A name in a model may contain any byte, but a C string ends at the first NUL.
    let text = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    // SAFETY: `text` ends in a zero byte, and the runtime copies it (R1).
    unsafe { create(code, text.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::catch_panic;

    /// A payload that panics again when it is dropped.
    struct Payload;

    static DROPPED: AtomicBool = AtomicBool::new(false);

    impl Drop for Payload {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("again"));
        }
    }

    #[test]
    fn no_panic_goes_further() {
        catch_panic(|| std::panic::resume_unwind(Box::new(Payload)));
        assert!(DROPPED.load(Ordering::Relaxed));
    }
}
