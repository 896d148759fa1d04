//! Registers the custom operators with runtimes.
//!
//! A runtime keeps the addresses of a domain and its operators as long as a session uses them, and does not report when
//! it drops them. So all sessions of a runtime share one domain. It is dropped when the runtime unloads the library,
//! after the last session that uses it.

use std::sync::Mutex;

use ort_sys::{OrtCustomOpDomain, OrtSessionOptions};

use crate::custom_ops::{self, CustomOp, DOMAIN};
use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::Failure;
#[cfg(target_os = "linux")]
use crate::status::catch_panic;

/// One registration for each runtime.
static REGISTRATIONS: Mutex<Vec<Registration>> = Mutex::new(Vec::new());

/// Adds the domain to the options of a session.
///
/// # Errors
/// The status of a function of the runtime.
///
/// # Safety
/// `options` is an object of the runtime and valid until this returns.
pub(crate) unsafe fn register(runtime: RuntimeApi, options: *mut OrtSessionOptions) -> Result<(), Failure> {
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
    // SAFETY: `options` is valid by this function's contract, and the domain lives as long as the library is loaded.
    runtime.check(unsafe { (runtime.api.AddCustomOpDomain)(options, domain) })
}

/// A runtime's domain and its operators.
struct Registration {
    runtime: RuntimeApi,
    domain: Owned<OrtCustomOpDomain>,
    /// The domain has their addresses and is dropped first.
    _operators: Box<[CustomOp]>,
}

// SAFETY: nothing of the domain belongs to a thread, and it does not change after `new`.
unsafe impl Send for Registration {}

impl Registration {
    fn new(runtime: RuntimeApi) -> Result<Self, Failure> {
        let api = runtime.api;
        // Made before the domain, so that an error drops them after it.
        let operators = custom_ops::all(runtime).into_boxed_slice();
        // SAFETY: the runtime copies the name, which ends in a zero byte, and `out` takes the result (R1).
        let domain = Owned::new(runtime, api.ReleaseCustomOpDomain, |out| unsafe {
            (api.CreateCustomOpDomain)(DOMAIN.as_ptr(), out)
        })?;
        for operator in &operators {
            // SAFETY: `domain` is not released yet, and the operator stays at its address until after the domain is
            // released.
            let status = unsafe { (api.CustomOpDomain_Add)(domain.as_ptr(), operator.as_ptr()) };
            runtime.check(status)?;
        }
        Ok(Self { runtime, domain, _operators: operators })
    }
}

/// Runs when the library is unloaded or the process ends. The runtime was loaded before the library, so its code is
/// still there. Systems without such a list of functions leak the registrations.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

#[cfg(target_os = "linux")]
extern "C" fn unload() {
    catch_panic(|| {
        // A process that ends during a registration leaks it.
        if let Ok(mut registrations) = REGISTRATIONS.try_lock() {
            drop(core::mem::take(&mut *registrations));
        }
    });
}
