//! The command `kvscatter` in this Python, and what it prints with `--json`.

use std::ffi::{OsString, c_int};

use kvscatter_cli::{Captured, Host, PythonPackage};
use kvscatter_ort_engine::{library_of_environment, plugin_of_environment};
use pyo3::prelude::*;

use crate::runtime::{own_path, package};

/// Runs the command of a command line, whose first word is the name of the program. Returns the exit code.
///
/// `template_evaluator` is a program, with its arguments, that calls `kvscatter_evaluate_template` of this module. Call
/// this once, in the main thread. A signal can end the process.
#[pyfunction]
pub(crate) fn run_command(
    py: Python<'_>,
    arguments: Vec<OsString>,
    template_evaluator: Vec<OsString>,
) -> PyResult<u8> {
    let host = Host::Python(PythonPackage {
        ort_library: match library_of_environment() {
            None => package(py)?,
            library => library,
        },
        ort_plugin: match plugin_of_environment() {
            None => own_path(py)?,
            Some(plugin) => plugin,
        },
        template_evaluator,
    });
    Ok(py.detach(|| kvscatter_cli::run(&arguments, &host)))
}

/// Runs the command of a command line as with `--json`. Returns the document on standard output and the one on standard
/// error. The first is empty after an error, and the second is None without one.
///
/// ONNX Runtime and the plugin are those of this Python, as in a session: a process has only one library.
#[pyfunction]
pub(crate) fn capture_command(
    py: Python<'_>,
    arguments: Vec<OsString>,
) -> PyResult<(Vec<u8>, Option<String>)> {
    let host = Host::Python(PythonPackage {
        ort_library: package(py)?,
        ort_plugin: own_path(py)?,
        template_evaluator: Vec::new(),
    });
    let Captured { document, error, .. } = py.detach(|| kvscatter_cli::capture(&arguments, &host));
    Ok((document, error))
}

/// Evaluates the chat template on standard input. Returns the exit code of the process, which `run_command` starts.
///
/// The process loads this module without Python's packages, because these can take more memory than a template may.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn kvscatter_evaluate_template() -> c_int {
    kvscatter_cli::evaluate_template().into()
}
