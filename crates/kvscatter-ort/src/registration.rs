//! Custom operators on loan to runtimes.
//!
//! A runtime keeps the addresses of a domain and its operators for as long as any session has them, and never gives
//! them back. So there is one domain for each runtime, however many sessions register it, and it goes when the
//! library is unloaded: the runtime does that after the last session that has it.

use std::sync::Mutex;

use ort_sys::{OrtCustomOpDomain, OrtSessionOptions};

use crate::custom_ops::{self, CustomOp, DOMAIN};
use crate::owned::Owned;
use crate::runtime::Runtime;
use crate::status::Failure;
#[cfg(target_os = "linux")]
use crate::status::contain;

/// What each runtime has been lent.
static LENT: Mutex<Vec<Registration>> = Mutex::new(Vec::new());

/// Adds the domain to the options of a session.
///
/// # Errors
/// Whatever the runtime says.
///
/// # Safety
/// `options` are the runtime's.
pub(crate) unsafe fn register(runtime: Runtime, options: *mut OrtSessionOptions) -> Result<(), Failure> {
    let mut lent = LENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let domain = match lent.iter().find(|registration| registration.runtime.is(runtime)) {
        Some(registration) => registration.domain.as_ptr(),
        None => {
            let registration = Registration::new(runtime)?;
            let domain = registration.domain.as_ptr();
            lent.push(registration);
            domain
        }
    };
    // SAFETY: the caller's; the domain stays as long as the library does.
    runtime.check(unsafe { (runtime.api.AddCustomOpDomain)(options, domain) })
}

/// A runtime's domain and what is in it.
struct Registration {
    runtime: Runtime,
    domain: Owned<OrtCustomOpDomain>,
    /// The domain has their addresses, and is dropped before them.
    _operators: Box<[CustomOp]>,
}

// SAFETY: a domain is a list, which is complete before anyone shares it.
unsafe impl Send for Registration {}

impl Registration {
    fn new(runtime: Runtime) -> Result<Self, Failure> {
        let api = runtime.api;
        // Made first, to go last if anything fails.
        let operators = custom_ops::all(runtime).into_boxed_slice();
        // SAFETY: the name is a string, which is copied; the answer goes to a pointer of `Owned`'s.
        let domain = Owned::new(runtime, api.ReleaseCustomOpDomain, |out| unsafe {
            (api.CreateCustomOpDomain)(DOMAIN.as_ptr(), out)
        })?;
        for operator in &operators {
            // SAFETY: the domain is owned here, and the operator stays where it is for as long.
            let status = unsafe { (api.CustomOpDomain_Add)(domain.as_ptr(), operator.as_ptr()) };
            runtime.check(status)?;
        }
        Ok(Self { runtime, domain, _operators: operators })
    }
}

/// Runs when the library is unloaded, or the process ends; either way the code of the runtime, which was there before
/// the library, still is. (Systems that have no such list of functions keep what is lent.)
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

#[cfg(target_os = "linux")]
extern "C" fn unload() {
    contain(|| {
        // Where a process ends in the middle of a registration, nothing is given back.
        if let Ok(mut lent) = LENT.try_lock() {
            drop(core::mem::take(&mut *lent));
        }
    });
}
