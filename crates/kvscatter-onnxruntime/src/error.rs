//! Why there is no runtime.

use std::path::PathBuf;

/// Why ONNX Runtime cannot be had. What it says of a model is [`kvscatter_session::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum Error {
    /// None of the places has it.
    #[error("no ONNX Runtime found; tried {}; its library, or a folder with it, can be given", tried.join(", "))]
    Missing { tried: Vec<String> },
    /// The named file or folder has none.
    #[error("{}: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    /// It lacks the operator.
    #[error("{}: ONNX Runtime {version}, at least {} is needed: the first with TensorScatter", path.display(), crate::OLDEST)]
    TooOld { path: PathBuf, version: String },
    /// A process holds one of them.
    #[error("{}: this process already runs the ONNX Runtime of {}", path.display(), loaded.display())]
    Loaded { path: PathBuf, loaded: PathBuf },
}
