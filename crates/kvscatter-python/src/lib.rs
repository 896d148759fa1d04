//! kvscatter for Python.

mod error;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {}
