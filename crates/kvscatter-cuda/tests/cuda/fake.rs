//! Calls the functions of the simulated driver for tests. They make it fail, count its calls, and set the
//! generation of its device.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uint};

use libloading::Symbol;

use crate::device::{DriverCode, library};

/// Returns `true` if the tests use the simulated driver, not that of a device.
pub(crate) fn is_fake() -> bool {
    has("fake_fail")
}

/// Returns `true` if the driver has this function.
pub(crate) fn has(name: &str) -> bool {
    // SAFETY: The symbol is never called, so its type does not matter.
    let found: Result<Symbol<'_, unsafe extern "C" fn()>, _> = unsafe { library().get(name) };
    found.is_ok()
}

fn function<F>(name: &str) -> Symbol<'static, F> {
    // SAFETY: Each caller below names a function of `tests/fake/driver.cpp` with its type.
    unsafe { library().get(name) }.unwrap()
}

/// Changes the simulated driver for this thread until it is dropped.
pub(crate) struct Changed(fn());

impl Changed {
    /// Lets a function of the driver fail.
    pub(crate) fn failing(name: &str, failure: DriverCode) -> Self {
        fail(name, failure);
        Self(|| fail("", 0))
    }

    /// Makes the device one of another generation.
    pub(crate) fn generation(capability: i32, newest_ptx: f64) -> Self {
        generation(capability, newest_ptx);
        Self(|| generation(90, 9.0))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn fail(name: &str, failure: DriverCode) {
    let name = CString::new(name).unwrap();
    let fail = function::<unsafe extern "C" fn(*const c_char, c_int)>("fake_fail");
    // SAFETY: `name` ends with a zero and lives during the call, which copies it.
    unsafe { fail(name.as_ptr(), failure) };
}

/// Returns the number of calls of a function by this thread.
pub(crate) fn calls(name: &str) -> u32 {
    let name = CString::new(name).unwrap();
    let calls = function::<unsafe extern "C" fn(*const c_char) -> c_uint>("fake_calls");
    // SAFETY: `name` ends with a zero and lives during the call.
    unsafe { calls(name.as_ptr()) }
}

/// Returns the number of calls of any function by this thread.
pub(crate) fn all_calls() -> u32 {
    counted("fake_all_calls")
}

/// Returns the number of words that kernels have exchanged while this thread waited for them.
pub(crate) fn exchanges() -> u32 {
    counted("fake_exchanges")
}

/// Returns the name of the kernel of this thread's last launch.
pub(crate) fn kernel() -> String {
    let kernel = function::<unsafe extern "C" fn() -> *const c_char>("fake_kernel");
    // SAFETY: `kernel` takes no arguments and returns a name of the simulated driver.
    let name = unsafe { kernel() };
    // SAFETY: The name ends with a zero and is never freed.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Returns the number of threads in a block of this thread's last launch.
pub(crate) fn threads() -> u32 {
    counted("fake_threads")
}

fn counted(name: &str) -> u32 {
    let count = function::<unsafe extern "C" fn() -> c_uint>(name);
    // SAFETY: `count` takes no arguments and returns a counter of the simulated driver.
    unsafe { count() }
}

fn generation(capability: i32, newest_ptx: f64) {
    let generation = function::<unsafe extern "C" fn(c_int, c_double)>("fake_device");
    // SAFETY: `generation` takes two numbers by value, which the simulated driver stores.
    unsafe { generation(capability, newest_ptx) };
}
