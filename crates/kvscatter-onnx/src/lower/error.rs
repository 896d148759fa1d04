//! Errors about models that cannot be lowered.

use kvscatter::ElementType;

/// An error about models that cannot be lowered.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum LowerError {
    /// The model has no `TensorScatter`.
    #[error("the model has no TensorScatter")]
    NothingToLower,
    /// A `TensorScatter` is in the body of an `If`, `Loop` or similar node. Such nodes are not lowered.
    #[error("a TensorScatter in the body of a node cannot be lowered")]
    ScatterNested,
    /// A `TensorScatter` is in a function of the model. The function must be inlined first.
    #[error("a TensorScatter in function {name:?} cannot be lowered: inline the model's functions first")]
    ScatterInFunction { name: String },
    /// No shape is declared for the past, the present or the update.
    #[error("the rank of the cache is not declared: run onnx's shape inference first")]
    RankUnknown,
    /// `ScatterElements` and `ScatterND` do not support this element type, although `TensorScatter` does.
    #[error("{element} cannot be lowered: ScatterElements and ScatterND do not support it")]
    LowerType { element: ElementType },
    /// Too many nodes would compute the indices of lowered caches.
    #[error("the indices of this and the nodes before need more than {limit} nodes")]
    IndexNodes { limit: usize },
}

crate::cause!(LowerError, Into::into);
