//! Converts the report on a session's memory.

use kvscatter_session::MemoryReport;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::lazy::Lazy;

/// Creates the `MemoryReport` of a session.
pub(crate) fn memory_report<'py>(py: Python<'py>, report: &MemoryReport) -> PyResult<Bound<'py, PyAny>> {
    static CACHE: Lazy<Py<PyType>> = Lazy::new();
    static REPORT: Lazy<Py<PyType>> = Lazy::new();
    let caches = report.caches.iter().map(|cache| {
        let shape = PyTuple::new(py, &cache.shape)?;
        let fields = (&cache.past, cache.element.numpy_name(), shape, cache.layer, cache.bytes);
        CACHE.import(py, "kvscatter._session", "CacheMemory")?.call1(fields)
    });
    let caches = PyTuple::new(py, caches.collect::<PyResult<Vec<_>>>()?)?;
    let layers = PyTuple::new(py, &report.layers)?;
    REPORT.import(py, "kvscatter._session", "MemoryReport")?.call1((
        caches,
        layers,
        report.per_token,
        report.rings,
        report.states,
        report.undo,
        report.total,
    ))
}
