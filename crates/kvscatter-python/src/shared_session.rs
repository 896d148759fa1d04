//! A session that several threads may call, and that may be closed.

use std::sync::{Mutex, PoisonError};

use kvscatter_session::{KvSession, SessionError};
use pyo3::prelude::*;

use crate::session_error::{busy, closed, raise};
use crate::signals::Signals;

pub(crate) struct SharedSession {
    /// The session, or `None` after it was closed.
    open: Mutex<Option<KvSession>>,
    signals: Signals,
}

impl SharedSession {
    pub(crate) fn new(session: KvSession) -> Self {
        Self { open: Mutex::new(Some(session)), signals: Signals::default() }
    }

    /// Calls a function with the session. Other threads run Python meanwhile, because another call may use
    /// the session for long.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut KvSession) -> Result<T, SessionError> + Send,
    ) -> PyResult<T> {
        let called = self.with_open(py, |session| session.as_mut().map(call))?;
        called.ok_or_else(|| closed(py))?.map_err(|error| self.exception(py, &error))
    }

    /// Calls a function with the session. Signal handlers can end the call between two runs of the model.
    pub(crate) fn with_signals<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut KvSession) -> Result<T, SessionError> + Send,
    ) -> PyResult<T> {
        self.with(py, |session| {
            session.interrupt_when(self.signals.check_in_call());
            call(session)
        })
    }

    /// Calls a function with the session, or with `None` if it was closed.
    pub(crate) fn with_open<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Option<KvSession>) -> T + Send,
    ) -> PyResult<T> {
        if self.signals.are_handled_here() {
            return Err(busy(py));
        }
        // A call that panicked has undone its step.
        Ok(py.detach(|| call(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))))
    }

    /// Creates the exception for an error. A call that a signal handler ended raises the handler's exception.
    fn exception(&self, py: Python<'_>, error: &SessionError) -> PyErr {
        let raised = match error {
            SessionError::Interrupted => self.signals.take_raised(),
            _ => None,
        };
        raised.unwrap_or_else(|| raise(py, error))
    }
}
