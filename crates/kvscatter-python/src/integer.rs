//! Decides which Python values are integers, and how messages show them.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::lazy::Lazy;

/// Returns the integer of a value, or `None` if it is not an integer. Booleans are not accepted, although they are
/// integers in Python. Returns what `__index__` raises, except for a `TypeError`. NumPy raises that error for arrays
/// and booleans.
pub(crate) fn integer<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyInt>>> {
    static INDEX: Lazy<Py<PyAny>> = Lazy::new();
    if value.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    if let Ok(integer) = value.cast::<PyInt>() {
        return Ok(Some(integer.clone()));
    }
    match INDEX.import(value.py(), "operator", "index")?.call1((value,)) {
        Ok(integer) => Ok(Some(integer.cast_into()?)),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the digits of an integer. Python raises an error instead of printing numbers with thousands of
/// digits.
pub(crate) fn decimal(value: &Bound<'_, PyAny>) -> String {
    value.str().map_or_else(|_| "a number of thousands of digits".to_owned(), |text| text.to_string())
}
