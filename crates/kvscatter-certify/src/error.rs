//! Errors for which no certificate can be made: bad input, or a runtime that cannot be loaded.

use std::path::PathBuf;

use kvscatter::ElementType;

/// The reason why a model cannot be certified.
///
/// A claim that does not hold is not an error, because the certificate reports it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CertifyError {
    /// The model's file or graph is invalid or is not supported.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::OnnxError),
    /// The engine failed, or the model's inputs, outputs or sizes cannot be used for a certification.
    #[error(transparent)]
    Session(#[from] kvscatter_session::SessionError),
    /// An error about one of two models, with the path of the model.
    #[error("{}: {cause}", path.display())]
    InModel { path: PathBuf, cause: Box<CertifyError> },
    /// A file or folder of the model cannot be read.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },

    // Errors about the model.
    /// The original is the model itself, so equal logits would not prove anything.
    #[error("{}: the original has the same files as the model: give the model that it was made from", path.display())]
    OriginalIsModel { path: PathBuf },
    /// The element type of the cache has no canaries. Only types that attention computes with or dequantises
    /// have them.
    #[error("cache {input:?} has elements of type {element}, for which there are no canaries")]
    NoCanary { input: String, element: ElementType },

    // Errors about the options.
    /// The number of prompts differs from the number of samples in the batch.
    #[error("{prompts} prompts do not match a batch of {batch}")]
    PromptCount { prompts: usize, batch: usize },
    /// The longest prompt and the steps after it do not fit the capacity, or a prompt is empty.
    #[error(
        "a prompt of {longest} tokens and {steps} steps must fit a cache of {capacity} slots, and every prompt must \
         have at least 1 token"
    )]
    PromptTooLong { longest: usize, steps: usize, capacity: usize },
    /// The batch or the capacity is too small for the claims to be examined.
    #[error("the batch is {batch} and the capacity is {capacity}, but they must be at least 1 and 2")]
    TooSmall { batch: usize, capacity: usize },
}
