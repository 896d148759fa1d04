//! Converts the result of a function's body to a status. No panic leaves the library.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call_error::{CallError, CallErrorKind};
use crate::last_error;
use crate::status::{kvs_status, kvs_status_code};

/// Runs the body of a C function. An error or a panic becomes the last error of the thread, and its number
/// is returned.
#[inline]
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), CallError>) -> kvs_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => kvs_status_code::KVS_OK as kvs_status,
        Ok(Err(error)) => last_error::record(error),
        Err(payload) => {
            discard(payload);
            last_error::record(CallErrorKind::Panic.into())
        }
    }
}

/// Drops the payload of a panic. If the drop panics too, the second payload is leaked.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::panic::panic_any;

    use super::guarded;
    use crate::{kvs_error, kvs_last_error, kvs_status_code};

    #[test]
    fn a_panic_is_a_status() {
        struct PanicsAgain;
        impl Drop for PanicsAgain {
            fn drop(&mut self) {
                panic_any(()); // nothing that could leak
            }
        }
        let panicked = kvs_status_code::KVS_ERROR_PANIC as i32;
        assert_eq!(guarded(|| panic_any(PanicsAgain)), panicked);
        assert_eq!(guarded(|| panic!("in a function of the header")), panicked);
        let mut error = kvs_error::none(size_of::<kvs_error>());
        // SAFETY: `error` lives, with its `struct_size` set.
        assert_eq!(unsafe { kvs_last_error(&mut error) }, 0);
        // SAFETY: The library ends every message with a zero byte.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap();
        assert_eq!(
            (error.code, message),
            (panicked, "the library panicked, which is a bug: please report it")
        );
    }
}
