//! The calls that the simulated driver counts.

use std::ffi::{CString, c_char, c_uint};

use libloading::Library;

/// Returns the number of calls of driver functions by this thread, or `None` with NVIDIA's driver, which does
/// not count.
pub(crate) fn calls(functions: &[&str]) -> Option<u32> {
    // SAFETY: Candle has already loaded this library, so no initialiser runs.
    let driver = unsafe { Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: `fake_calls` has this type in `driver.cpp`, and NVIDIA's driver has no function with this name.
    let count =
        unsafe { driver.get::<unsafe extern "C" fn(*const c_char) -> c_uint>(b"fake_calls\0") }.ok()?;
    let calls = functions.iter().map(|function| {
        let function = CString::new(*function).unwrap();
        // SAFETY: `function` ends with a zero byte and is valid during the call.
        unsafe { count(function.as_ptr()) }
    });
    Some(calls.sum())
}
