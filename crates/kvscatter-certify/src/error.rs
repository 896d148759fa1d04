//! The reasons why no certificate can be made: bad input, or a runtime that cannot be loaded.

use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::decoder::Growth;

/// The reason why a model cannot be certified.
///
/// A claim that does not hold is not an error, because the certificate reports it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CertifyError {
    /// The model's file or graph cannot be read or understood.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::OnnxError),
    /// The engine failed, or the model's inputs, outputs or sizes cannot be used for a certification.
    #[error(transparent)]
    Session(#[from] kvscatter_session::SessionError),
    /// Adds the path of the model, because two models are involved.
    #[error("{}: {cause}", path.display())]
    InModel { path: PathBuf, cause: Box<CertifyError> },
    /// A file or folder of the model cannot be read.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },

    // Errors about the model.
    /// A cache is not static, because its present is longer than its past. There is nothing to certify.
    #[error("cache {input:?} is not static, its style is {style}: {growth}")]
    NotStatic { input: String, style: String, growth: Growth },
    /// The original is the model itself, so equal logits would prove nothing.
    #[error("{}: the original is the model itself, byte for byte: give the one it was made from", path.display())]
    OriginalIsModel { path: PathBuf },
    /// The cache's element type has no canaries. Only types that attention computes with or dequantises have
    /// them.
    #[error("cache {input:?} is of {element}, which no canary can be painted in")]
    NoCanary { input: String, element: ElementType },

    // Errors about the options.
    /// The number of prompts differs from the batch.
    #[error("{prompts} prompts are no batch of {batch}")]
    PromptCount { prompts: usize, batch: usize },
    /// The longest prompt and the steps after it do not fit the capacity, or a prompt is empty.
    #[error(
        "a prompt of {longest} tokens, at least 1, and {steps} steps do not fit a cache of {capacity} slots"
    )]
    PromptTooLong { longest: usize, steps: usize, capacity: usize },
    /// The batch or the capacity is too small for the claims to be examined.
    #[error("a batch of {batch} and a capacity of {capacity} are too small: at least 1 and 2 are needed")]
    TooSmall { batch: usize, capacity: usize },
}
