//! The context manager that keeps or undoes the steps of its block.

use std::sync::Arc;

use kvscatter_session::{KvSession, Sample};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::shared_session::SharedSession;

/// A context manager that keeps the steps of its block, or undoes them if the block raises an exception.
/// `KvSession.transaction` returns it.
#[pyclass(frozen, name = "Transaction", module = "kvscatter")]
pub(crate) struct PyTransaction {
    pub(crate) session: Arc<SharedSession>,
    pub(crate) samples: Vec<Sample>,
}

#[pymethods]
impl PyTransaction {
    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        self.session.with(py, |session| session.begin_all(&self.samples))
    }

    #[pyo3(signature = (exception_type, *_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception_type: &Bound<'_, PyAny>,
        _exception: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        let end = if exception_type.is_none() { KvSession::commit } else { KvSession::rollback };
        self.session.with_open(py, |session| {
            for sample in &self.samples {
                // The block may have ended or removed the sample, or closed the session.
                let _ = session.as_mut().map(|session| end(session, *sample));
            }
        })
    }

    fn __repr__(&self) -> String {
        format!("<kvscatter.Transaction: {} samples>", self.samples.len())
    }
}
