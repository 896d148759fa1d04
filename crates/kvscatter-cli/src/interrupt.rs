//! Signals that end the command: it removes what it has begun, and then dies of the signal all the same.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use kvscatter_onnx::file::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// From now on, SIGINT, SIGTERM and SIGHUP remove unfinished files first. A second signal ends the command at once.
///
/// A signal that the command was started to ignore, as by `nohup`, stays ignored.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn clean_up_on_signals() -> io::Result<()> {
    let mut handled = Vec::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if !is_ignored(signal)? {
            handled.push(signal);
        }
    }
    let is_second = Arc::new(AtomicBool::new(false));
    for &signal in &handled {
        // In this order: the first signal sets what the second one sees.
        flag::register_conditional_default(signal, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
    }
    let mut signals = Signals::new(&handled)?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let _ending = remove_unfinished();
            // It does not return from a signal that ends a process.
            let _ = low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

#[expect(unsafe_code, reason = "no safe function asks for a signal's disposition without changing it")]
fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and there is room for the present one.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written the action.
    let action = unsafe { action.assume_init() };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}
