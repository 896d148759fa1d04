//! Registers the custom operators with runtimes.
//!
//! A runtime keeps the addresses of a domain and its operators as long as a session uses them, and does not
//! report when it drops them. All sessions of a runtime therefore share one domain. The domain is dropped
//! when the runtime unloads this library, after the last session that uses the domain.

use std::sync::Mutex;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

use ort_sys::{OrtCustomOpDomain, OrtSessionOptions};

use crate::custom_ops::{self, CustomOp, DOMAIN};
use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::CallError;
#[cfg(target_os = "linux")]
use crate::status::catch_panic;

/// The registrations, one for each runtime.
static REGISTRATIONS: Mutex<Vec<Registration>> = Mutex::new(Vec::new());

/// Adds the domain to the options of a session.
///
/// # Safety
/// `options` is an object of the runtime and valid until this returns.
pub(crate) unsafe fn register(runtime: RuntimeApi, options: *mut OrtSessionOptions) -> Result<(), CallError> {
    let mut registrations = REGISTRATIONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let domain = match registrations.iter().find(|registration| registration.runtime.is_same(runtime)) {
        Some(registration) => registration.domain.as_ptr(),
        None => {
            let registration = Registration::new(runtime)?;
            let domain = registration.domain.as_ptr();
            registrations.push(registration);
            domain
        }
    };
    // SAFETY: `options` is valid by this function's contract, and the domain lives as long as the library is
    // loaded.
    runtime.check(unsafe { (runtime.api.AddCustomOpDomain)(options, domain) })
}

/// The domain of a runtime and its operators.
struct Registration {
    runtime: RuntimeApi,
    domain: Owned<OrtCustomOpDomain>,
    /// The operators, whose addresses the domain contains. The domain is dropped first.
    _operators: Box<[CustomOp]>,
}

// SAFETY: No part of the domain belongs to a thread, and the domain does not change after `new`.
unsafe impl Send for Registration {}

impl Registration {
    fn new(runtime: RuntimeApi) -> Result<Self, CallError> {
        let api = runtime.api;
        // The operators are made before the domain, so that an error drops them after the domain.
        let operators = custom_ops::all(runtime).into_boxed_slice();
        // SAFETY: The runtime copies the name, which ends in a zero byte, and `out` takes the result (R1).
        let domain = Owned::new(runtime, api.ReleaseCustomOpDomain, |out| unsafe {
            (api.CreateCustomOpDomain)(DOMAIN.as_ptr(), out)
        })?;
        for operator in &operators {
            // SAFETY: `domain` is not released yet, and the operator stays at its address until after the
            // domain is released.
            let status = unsafe { (api.CustomOpDomain_Add)(domain.as_ptr(), operator.as_ptr()) };
            runtime.check(status)?;
        }
        Ok(Self { runtime, domain, _operators: operators })
    }
}

/// Keeps the registrations when the process ends.
///
/// A library that contains this crate and that was loaded before a runtime must call this function when it is
/// loaded. At the end of the process, such a runtime is gone before the library.
pub fn stay_loaded() {
    #[cfg(target_os = "linux")]
    STAYS.store(true, Ordering::Relaxed);
}

/// Whether the registrations are kept when the process ends.
#[cfg(target_os = "linux")]
static STAYS: AtomicBool = AtomicBool::new(false);

/// The function runs when the library is unloaded or the process ends. The runtime was loaded before the
/// library, so its code is still there, unless the library [stays loaded](stay_loaded). Systems without such
/// a list of functions leak the registrations.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

#[cfg(target_os = "linux")]
extern "C" fn unload() {
    if STAYS.load(Ordering::Relaxed) {
        return;
    }
    catch_panic(|| {
        // If the process ends during a registration, this leaks the registration.
        if let Ok(mut registrations) = REGISTRATIONS.try_lock() {
            drop(core::mem::take(&mut *registrations));
        }
    });
}
