//! Ends a call of a session when a signal handler raises, such as that of Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The minimum time between two checks. A check waits until other Python threads pause, which can take longer than a
/// run of a small model.
const INTERVAL: Duration = Duration::from_millis(20);

/// The signal handlers that run during the calls of one session.
#[derive(Clone, Default)]
pub(crate) struct Signals(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The exception of a handler.
    raised: Option<PyErr>,
    /// The thread that runs handlers now.
    thread: Option<ThreadId>,
}

impl Signals {
    /// Returns a function that runs pending handlers, and returns `true` if one of them raises. Python runs handlers
    /// in its main thread only.
    pub(crate) fn check_in_call(&self) -> impl FnMut() -> bool + Send + use<> {
        let (signals, mut checked) = (self.clone(), Instant::now());
        move || {
            let is_due = checked.elapsed() >= INTERVAL;
            let raises = is_due && signals.run_handlers();
            if is_due {
                checked = Instant::now();
            }
            raises
        }
    }

    /// Returns the exception of the handler that ended a call.
    pub(crate) fn take_raised(&self) -> Option<PyErr> {
        self.state().raised.take()
    }

    /// Returns `true` if this thread runs handlers during a call, so that another call would wait for itself.
    pub(crate) fn are_handled_here(&self) -> bool {
        self.state().thread == Some(thread::current().id())
    }

    fn run_handlers(&self) -> bool {
        self.state().thread = Some(thread::current().id());
        // If the interpreter ends, it runs no handlers.
        let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
        let mut state = self.state();
        state.thread = None;
        // A step in another thread must not forget an exception that the main thread has not taken yet.
        let is_raised = raised.is_some();
        state.raised = raised.or_else(|| state.raised.take());
        is_raised
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
