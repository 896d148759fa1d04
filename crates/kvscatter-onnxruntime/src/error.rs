//! Errors of finding and loading ONNX Runtime.

use std::path::PathBuf;

/// An error of finding or loading ONNX Runtime or the plugin. Errors of a model are [`kvscatter_session::SessionError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum RuntimeError {
    /// None of the searched paths contains the library.
    #[error("no ONNX Runtime found; tried {}; its library, or a folder with it, can be given", tried.join(", "))]
    Missing { tried: Vec<String> },
    /// The named file or folder does not contain the library.
    #[error("{}: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    /// The version of the library is older than [`OLDEST`](crate::OLDEST).
    #[error("{}: ONNX Runtime {version} has no TensorScatter, at least {} is needed", path.display(), crate::OLDEST)]
    TooOld { path: PathBuf, version: String },
    /// This process has already loaded another library.
    #[error("{}: this process already runs the ONNX Runtime of {}", path.display(), loaded.display())]
    Loaded { path: PathBuf, loaded: PathBuf },
    /// The named file is not kvscatter's plugin, or the library refuses it.
    #[error("{}: {why}", path.display())]
    PluginUnusable { path: PathBuf, why: String },
    /// This process has already loaded another plugin.
    #[error("{}: this process already uses the plugin {}", path.display(), loaded.display())]
    PluginLoaded { path: PathBuf, loaded: PathBuf },
}

impl RuntimeError {
    /// Returns the stable name of the error, such as `runtime_missing`.
    ///
    /// The name does not change between versions, even if the variant gets a new name.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "runtime_missing",
            Self::Unusable { .. } => "runtime_unusable",
            Self::TooOld { .. } => "runtime_too_old",
            Self::Loaded { .. } => "runtime_loaded",
            Self::PluginUnusable { .. } => "plugin_unusable",
            Self::PluginLoaded { .. } => "plugin_loaded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PathBuf, RuntimeError};

    #[test]
    fn names_are_stable() {
        let path = PathBuf::new;
        let named = [
            (RuntimeError::Missing { tried: vec![] }, "runtime_missing"),
            (RuntimeError::Unusable { path: path(), why: String::new() }, "runtime_unusable"),
            (RuntimeError::TooOld { path: path(), version: String::new() }, "runtime_too_old"),
            (RuntimeError::Loaded { path: path(), loaded: path() }, "runtime_loaded"),
            (RuntimeError::PluginUnusable { path: path(), why: String::new() }, "plugin_unusable"),
            (RuntimeError::PluginLoaded { path: path(), loaded: path() }, "plugin_loaded"),
        ];
        for (error, name) in named {
            assert_eq!(error.kind(), name, "{error:?}");
        }
    }
}
