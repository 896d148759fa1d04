//! Handles signals that end the command. The command removes its unfinished files, and then ends by the same
//! signal.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "text")]
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;

use kvscatter_onnx::internal::file::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// Whether a signal came before, so that the next one ends the command at once.
static IS_SECOND: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// What SIGINT does: [`ENDS_COMMAND`], [`ENDS_PART`], or nothing more, because it came ([`CAME`]). It is one value, so
/// that a signal at the end of a part either belongs to the part or ends the command.
#[cfg(feature = "text")]
static SIGINT_STATE: AtomicU8 = AtomicU8::new(ENDS_COMMAND);
#[cfg(feature = "text")]
const ENDS_COMMAND: u8 = 0;
#[cfg(feature = "text")]
const ENDS_PART: u8 = 1;
#[cfg(feature = "text")]
const CAME: u8 = 2;

/// A time in which SIGINT ends a part of the work, such as the text that is generated. A second SIGINT ends the
/// command.
#[cfg(feature = "text")]
pub(crate) struct Interrupts(());

#[cfg(feature = "text")]
impl Interrupts {
    pub(crate) fn catch() -> Self {
        SIGINT_STATE.store(ENDS_PART, SeqCst);
        Self(())
    }

    /// Returns whether SIGINT came.
    pub(crate) fn has_one(&self) -> bool {
        SIGINT_STATE.load(SeqCst) == CAME
    }

    /// Ends the command as SIGINT does, if it came.
    pub(crate) fn end(self) {
        if self.has_one() {
            end_by(SIGINT);
        }
    }
}

#[cfg(feature = "text")]
impl Drop for Interrupts {
    fn drop(&mut self) {
        if SIGINT_STATE.swap(ENDS_COMMAND, SeqCst) == CAME
            && let Some(is_second) = IS_SECOND.get()
        {
            is_second.store(false, SeqCst);
        }
    }
}

/// Removes unfinished files and ends the process by a signal.
fn end_by(signal: i32) {
    let _ending = remove_unfinished();
    // This call does not return, because the signal ends the process.
    let _ = low_level::emulate_default_handler(signal);
}

/// Makes SIGINT, SIGTERM and SIGHUP remove unfinished files before they end the command. A second signal ends
/// it at once.
///
/// If the command was started with a signal ignored, for example by `nohup`, the signal stays ignored.
pub(crate) fn clean_up_on_signals() -> io::Result<()> {
    fail_at_size_limit();
    let mut handled = Vec::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if !is_ignored(signal)? {
            handled.push(signal);
        }
    }
    let is_second = Arc::clone(IS_SECOND.get_or_init(Arc::default));
    for &signal in &handled {
        // The order matters: the first signal sets the flag that the second one reads.
        flag::register_conditional_default(signal, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
    }
    let mut signals = Signals::new(&handled)?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            #[cfg(feature = "text")]
            if signal == SIGINT && SIGINT_STATE.compare_exchange(ENDS_PART, CAME, SeqCst, SeqCst).is_ok() {
                continue;
            }
            end_by(signal);
        }
    })?;
    Ok(())
}

/// Makes a write beyond the size limit of files an error, so that the command removes unfinished files. By
/// default, such a write ends the process.
#[expect(unsafe_code, reason = "no safe function ignores a signal")]
fn fail_at_size_limit() {
    // SAFETY: SIG_IGN is not a function, so no code runs in a handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[expect(unsafe_code, reason = "no safe function reads the disposition of a signal without changing it")]
fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the pointer to a new action is null, which is allowed, and `action` has the size of one action.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written the action.
    let action = unsafe { action.assume_init() };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}
