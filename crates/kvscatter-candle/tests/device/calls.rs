//! What the tests' driver counts.

use std::ffi::{CString, c_char, c_uint};

use libloading::Library;

/// How often this thread has called functions of the driver; `None` with NVIDIA's, which does not count.
pub(crate) fn calls(functions: &[&str]) -> Option<u32> {
    // SAFETY: the driver of this process, which is loaded already.
    let driver = unsafe { Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: `fake_calls` of `driver.cpp`.
    let count =
        unsafe { driver.get::<unsafe extern "C" fn(*const c_char) -> c_uint>(b"fake_calls\0") }.ok()?;
    let calls = functions.iter().map(|function| {
        let function = CString::new(*function).unwrap();
        // SAFETY: it reads a name that ends with a zero.
        unsafe { count(function.as_ptr()) }
    });
    Some(calls.sum())
}
