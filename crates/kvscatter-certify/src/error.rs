//! Why there is no certificate: bad input, or a runtime that cannot be had.

use std::path::PathBuf;

use kvscatter::ElementType;

/// Why a model cannot be certified at all. A claim that does not hold is no error: the certificate says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum Error {
    /// The model's file or graph.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::Error),
    /// A file or folder of the model cannot be read.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },

    // Memory.
    /// No buffer holds such a tensor, or the system has no memory for it.
    #[error("no memory for a tensor of {element} of shape {shape:?}")]
    TensorTooLarge { element: ElementType, shape: Vec<usize> },
    /// The values do not fill the shape.
    #[error("shape {shape:?} takes {want} values, got {got}")]
    ValueCount { shape: Vec<usize>, want: usize, got: usize },
    /// An integer has to be fed in a type that does not hold it.
    #[error("{value} does not fit an input of {element}")]
    InputType { element: ElementType, value: i64 },

    // ONNX Runtime.
    /// None of the places has it.
    #[error("no ONNX Runtime found; tried {}; give its library or a wheel's folder with --ort-lib", tried.join(", "))]
    RuntimeMissing { tried: Vec<String> },
    /// The named file or folder has none.
    #[error("{}: {why}", path.display())]
    RuntimeUnusable { path: PathBuf, why: String },
    /// It lacks the operator.
    #[error("{}: ONNX Runtime {version}, at least {} is needed: the first with TensorScatter", path.display(), crate::onnxruntime::OLDEST)]
    RuntimeTooOld { path: PathBuf, version: String },
    /// A process holds one of them.
    #[error("{}: this process already runs the ONNX Runtime of {}", path.display(), loaded.display())]
    RuntimeLoaded { path: PathBuf, loaded: PathBuf },

    // Its verdicts on models.
    /// It does not take the model.
    #[error("{}: {engine} cannot load it: {says}", path.display())]
    Load { path: PathBuf, engine: String, says: String },
    /// It does not run the model.
    #[error("{engine} cannot run the model: {says}")]
    Run { engine: String, says: String },
}
