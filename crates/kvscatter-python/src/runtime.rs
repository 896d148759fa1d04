//! The ONNX Runtime of this Python, whose package need not be imported.

use std::path::PathBuf;

use kvscatter_onnxruntime::OnnxRuntime;
use pyo3::prelude::*;

use crate::session_error::no_runtime;

/// Loads the library at this path, otherwise that of this Python's package, otherwise the one that the
/// environment names.
///
/// The package comes before the environment. A process has only one library, and Python code that imports
/// the package needs the package's library.
pub(crate) fn load(py: Python<'_>, library: Option<PathBuf>) -> PyResult<OnnxRuntime> {
    let library = match library {
        None => package(py)?,
        library => library,
    };
    py.detach(|| OnnxRuntime::load(library.as_deref())).map_err(|error| no_runtime(py, &error))
}

/// Returns the folder of the installed package.
fn package(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let spec = py.import("importlib.util")?.call_method1("find_spec", ("onnxruntime",))?;
    if spec.is_none() {
        return Ok(None);
    }
    let folders = spec.getattr("submodule_search_locations")?;
    if folders.is_none() { Ok(None) } else { folders.get_item(0)?.extract().map(Some) }
}
