//! What the runtime makes and wants back.

use core::ptr::{NonNull, null_mut};

use ort_sys::OrtStatusPtr;

use crate::runtime::Runtime;
use crate::status::Failure;

/// Something that the runtime made and this library gives back.
pub(crate) struct Owned<T> {
    raw: NonNull<T>,
    release: unsafe extern "system" fn(*mut T),
}

impl<T> Owned<T> {
    /// Calls `make`, one of the runtime's functions that write what they made to a pointer. `release` is the one
    /// that takes it back.
    ///
    /// # Errors
    /// Whatever the runtime says.
    pub(crate) fn new(
        runtime: Runtime,
        release: unsafe extern "system" fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> OrtStatusPtr,
    ) -> Result<Self, Failure> {
        let mut raw = null_mut();
        runtime.check(make(&raw mut raw))?;
        let raw = NonNull::new(raw).ok_or_else(|| Failure::fail("kvscatter: the runtime made nothing"))?;
        Ok(Self { raw, release })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the runtime whose function this is, and given back once.
        unsafe { (self.release)(self.raw.as_ptr()) };
    }
}
