//! Objects that the runtime makes and this library releases.

use core::ptr::{NonNull, null_mut};

use ort_sys::OrtStatusPtr;

use crate::runtime::RuntimeApi;
use crate::status::CallError;

/// An object that the runtime made. Dropping it releases it.
pub(crate) struct Owned<T> {
    raw: NonNull<T>,
    release: unsafe extern "system" fn(*mut T),
}

impl<T> Owned<T> {
    /// Creates an object. `make` calls a function of the runtime that writes the address of a new object, and `release`
    /// is the runtime's function that releases such objects. Returns the status of the function that `make` calls, if
    /// that function fails.
    pub(crate) fn new(
        runtime: RuntimeApi,
        release: unsafe extern "system" fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> OrtStatusPtr,
    ) -> Result<Self, CallError> {
        let mut raw = null_mut();
        runtime.check(make(&raw mut raw))?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| CallError::fail("kvscatter: the runtime returned NULL instead of an object"))?;
        Ok(Self { raw, release })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `release` is the function for the object at `raw`, which the runtime returned to `new`.
        // This is the last use of the object (R1).
        unsafe { (self.release)(self.raw.as_ptr()) };
    }
}
