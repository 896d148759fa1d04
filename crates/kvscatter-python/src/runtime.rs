//! The ONNX Runtime of this Python, whose package need not be imported.

use std::path::PathBuf;

use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::{Engine, GroupQueryNodes, engine_label};
use pyo3::prelude::*;

use crate::session_error::no_runtime;

/// The value of the argument `plugin`.
#[derive(Clone, FromPyObject)]
pub(crate) enum Plugin {
    /// Whether this module is used as the plugin.
    #[pyo3(annotation = "bool")]
    OfPackage(bool),
    #[pyo3(annotation = "str | os.PathLike")]
    At(PathBuf),
}

/// Loads the library at this path, otherwise that of this Python's package, otherwise the one that the
/// environment names. Then loads the plugin.
///
/// The package comes before the environment. A process has only one library, and Python code that imports
/// the package needs the package's library.
pub(crate) fn load(py: Python<'_>, library: Option<PathBuf>, plugin: Plugin) -> PyResult<OnnxRuntime> {
    let library = match library {
        None => package(py)?,
        library => library,
    };
    let plugin = match plugin {
        Plugin::OfPackage(true) => Some(own_path(py)?),
        Plugin::OfPackage(false) => None,
        Plugin::At(path) => Some(path),
    };
    let load = || {
        let runtime = OnnxRuntime::load(library.as_deref())?;
        match plugin {
            Some(plugin) => runtime.with_plugin(&plugin),
            None => Ok(runtime),
        }
    };
    py.detach(load).map_err(|error| no_runtime(py, &error))
}

/// Returns the name and version of an engine and its plugin.
pub(crate) fn label(engine: &OnnxRuntime) -> String {
    engine_label(engine.name(), engine.version(), engine.plugin())
}

/// Returns `true` if the ONNX Runtime of this library, which other packages use, has registered a plugin of kvscatter.
#[pyfunction]
pub(crate) fn has_plugin(py: Python<'_>, library: PathBuf) -> PyResult<bool> {
    py.detach(|| kvscatter_ort_engine::has_plugin(&library)).map_err(|error| no_runtime(py, &error))
}

/// Returns how many nodes of `GroupQueryAttention` the plugin computes, and how many there are.
pub(crate) fn group_query_nodes(of_model: Option<GroupQueryNodes>) -> (usize, usize) {
    of_model.map_or((0, 0), |GroupQueryNodes { nodes, in_plugin }| (in_plugin, nodes))
}

/// Returns the path of this module, which is a plugin.
pub(crate) fn own_path(py: Python<'_>) -> PyResult<PathBuf> {
    py.import("kvscatter._native")?.getattr("__file__")?.extract()
}

/// Returns the folder of the installed package.
pub(crate) fn package(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let spec = py.import("importlib.util")?.call_method1("find_spec", ("onnxruntime",))?;
    if spec.is_none() {
        return Ok(None);
    }
    let folders = spec.getattr("submodule_search_locations")?;
    if folders.is_none() { Ok(None) } else { folders.get_item(0)?.extract().map(Some) }
}
