//! Errors in finding and loading ONNX Runtime.

use std::path::PathBuf;

/// Why ONNX Runtime could not be loaded. Its errors about a model are [`kvscatter_session::SessionError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum RuntimeError {
    /// It is on none of the paths searched.
    #[error("no ONNX Runtime found; tried {}; its library, or a folder with it, can be given", tried.join(", "))]
    Missing { tried: Vec<String> },
    /// The named file or folder does not contain it.
    #[error("{}: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    /// It is older than [`OLDEST`](crate::OLDEST).
    #[error("{}: ONNX Runtime {version}, at least {} is needed: the first with TensorScatter", path.display(), crate::OLDEST)]
    TooOld { path: PathBuf, version: String },
    /// This process has loaded another one.
    #[error("{}: this process already runs the ONNX Runtime of {}", path.display(), loaded.display())]
    Loaded { path: PathBuf, loaded: PathBuf },
}
