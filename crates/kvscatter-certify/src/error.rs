//! Why there is no certificate: bad input, or a runtime that cannot be had.

use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::decoder::Growth;

/// Why a model cannot be certified at all. A claim that does not hold is no error. The certificate reports it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CertifyError {
    /// The model's file or graph.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::OnnxError),
    /// What runs it, or its verdict on the model.
    #[error(transparent)]
    Session(#[from] kvscatter_session::SessionError),
    /// Which of the two models it is about.
    #[error("{}: {cause}", path.display())]
    InModel { path: PathBuf, cause: Box<CertifyError> },
    /// A file or folder of the model cannot be read.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },

    // What the model is.
    /// There is nothing to certify: a present is longer than its past.
    #[error("cache {input:?} is not static, its style is {style}: {growth}")]
    NotStatic { input: String, style: String, growth: Growth },
    /// Equal logits would show nothing.
    #[error("{}: the original is the model itself, byte for byte: give the one it was made from", path.display())]
    OriginalIsModel { path: PathBuf },
    /// Canaries exist in the types that attention computes with.
    #[error("cache {input:?} is of {element}, which no canary can be painted in")]
    NoCanary { input: String, element: ElementType },

    // What is asked for.
    /// Two options disagree.
    #[error("{prompts} prompts are no batch of {batch}")]
    PromptCount { prompts: usize, batch: usize },
    /// The scenarios need room.
    #[error(
        "a prompt of {longest} tokens, at least 1, and {steps} steps do not fit a cache of {capacity} slots"
    )]
    PromptTooLong { longest: usize, steps: usize, capacity: usize },
    /// Nothing can be seen in so little.
    #[error("a batch of {batch} and a capacity of {capacity} are too small: at least 1 and 2 are needed")]
    TooSmall { batch: usize, capacity: usize },
}
