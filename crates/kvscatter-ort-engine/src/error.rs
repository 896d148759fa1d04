//! Errors of finding and loading ONNX Runtime.

use std::path::PathBuf;

use kvscatter_onnx::RuntimeVersion;

/// An error of finding or loading ONNX Runtime or the plugin. Errors of a model are
/// [`kvscatter_session::SessionError`].
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum RuntimeError {
    /// None of the searched paths contains the library.
    #[error("no ONNX Runtime found; tried {}; its library, or a folder with it, can be given", tried.join(", "))]
    #[strum(serialize = "runtime_missing")]
    Missing { tried: Vec<String> },
    /// The named file or folder does not contain the library.
    #[error("{}: {why}", path.display())]
    #[strum(serialize = "runtime_unusable")]
    Unusable { path: PathBuf, why: String },
    /// The version of the library is older than [`RuntimeVersion::WITH_SCATTER`].
    #[error("{}: ONNX Runtime {version} has no TensorScatter, at least {} is needed", path.display(), RuntimeVersion::WITH_SCATTER)]
    #[strum(serialize = "runtime_too_old")]
    TooOld { path: PathBuf, version: String },
    /// This process has already loaded another library.
    #[error("{}: this process already runs the ONNX Runtime of {}", path.display(), loaded.display())]
    #[strum(serialize = "runtime_loaded")]
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
    pub fn kind(&self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::RuntimeError;

    #[test]
    fn names_are_stable() {
        let names =
            "runtime_missing runtime_unusable runtime_too_old runtime_loaded plugin_unusable plugin_loaded";
        assert_eq!(RuntimeError::VARIANTS.join(" "), names);
        assert_eq!(RuntimeError::Missing { tried: vec![] }.kind(), "runtime_missing");
    }
}
