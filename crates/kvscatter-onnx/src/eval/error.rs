//! Errors about the evaluation of a graph.

use kvscatter::ElementType;

use super::NotInPlace;
use crate::dynamic_dim::{DynamicDim, DynamicDims};

/// An error about the evaluation of a graph.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum EvalError {
    /// The evaluator does not support this operator.
    #[error("this operator cannot be evaluated; TensorScatter, Identity, Constant and Add can")]
    UnsupportedOperator,
    /// The operator is a function of the model.
    #[error("a function defined in the model cannot be evaluated")]
    Function,
    /// The mode does not exist.
    #[error("mode = {mode:?}: only linear and circular exist")]
    Mode { mode: String },
    /// A `Constant` does not have exactly one value.
    #[error("{got} attributes, expected exactly 1")]
    ConstantAttributes { got: usize },
    /// `Add` got a type other than integers of 8 to 64 bits.
    #[error("a sum of {element}: only integers of 8 to 64 bits are added")]
    AddType { element: ElementType },
    /// `Add` got two different types.
    #[error("the operands are {left} and {right}: they must agree")]
    AddTypes { left: ElementType, right: ElementType },
    /// The shapes do not broadcast.
    #[error("shapes {left:?} and {right:?} do not broadcast")]
    Broadcast { left: Vec<usize>, right: Vec<usize> },
    /// The evaluation needs more memory than the limit. No value was computed.
    #[error("the values need {needed} bytes, which exceeds the limit of {limit}")]
    MemoryLimit { needed: u64, limit: u64 },
    /// The caller requested a write in place, but the graph does not allow it.
    #[error("cannot write in place: {reason}")]
    NotInPlace { reason: Box<NotInPlace> },
    /// A value has more dimensions than the evaluator supports.
    #[error("{name:?} has rank {rank}, at most {limit} is supported")]
    RankTooLarge { name: String, rank: usize, limit: usize },
    /// A graph input has no value.
    #[error("input {name:?} has no value")]
    InputMissing { name: String },
    /// A value was given for a name that is not a graph input.
    #[error("{name:?} is not an input of the graph")]
    InputUnknown { name: String },
    /// The element type of a value differs from the declared one.
    #[error("{name:?} is {got}, the graph declares {expected}")]
    ValueType { name: String, expected: ElementType, got: ElementType },
    /// The rank of a value differs from the declared one.
    #[error("{name:?} has rank {got}, the graph declares {expected}")]
    ValueRank { name: String, expected: usize, got: usize },
    /// A dimension of a value differs from the declared one.
    #[error("{name:?} has dimension {axis} = {got}, the graph declares {expected}")]
    ValueDim { name: String, axis: usize, expected: usize, got: usize },
    /// One symbolic dimension has two sizes.
    #[error("{name:?} has dimension {axis} ({symbol:?}) = {got}, elsewhere {symbol:?} = {expected}")]
    SymbolConflict { name: String, axis: usize, symbol: String, expected: usize, got: usize },
    /// An input declares no rank, so its values cannot be generated.
    #[error("input {name:?} declares no shape: give its values")]
    ShapeUnknown { name: String },
    /// Sizes of open dimensions are missing.
    #[error("the size of {} is open: give it", DynamicDims(open))]
    DimsMissing { open: Vec<DynamicDim> },
    /// No input has this open dimension.
    #[error("no input has a dimension {dim:?} whose size is open")]
    DimUnused { dim: String },
    /// No index is valid. The update is longer than the cache, or a constant offset leads out of the cache.
    #[error("no value of input {name:?} makes all write_indices valid that depend on it")]
    NoValidIndices { name: String },
}

crate::cause!(EvalError, Into::into);
