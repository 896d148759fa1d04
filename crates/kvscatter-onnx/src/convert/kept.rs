//! Attention that stays as it is.

use kvscatter::ElementType;

use crate::OnnxError;

/// An attention operation that keeps its nodes, and the reason.
#[derive(Debug)]
pub struct KeptAttention {
    /// The name of the value that the attention computes: the product of weights and values, or the output of an
    /// `Attention` node.
    pub output: String,
    /// The reason.
    pub reason: KeptReason,
}

/// The reason why an attention operation stays as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum KeptReason {
    /// A part of the attention does not have the form that `Attention` has.
    #[error(transparent)]
    Form(#[from] KeptForm),
    /// Scores, queries or keys are multiplied by more than one number.
    #[error("{value:?} is not a single number, and Attention has one scale and one cap")]
    Factor { value: String },
    /// The scores are capped, and the [options](crate::convert::ConvertOptions::onnxruntime) name a version that caps
    /// them in another way.
    #[error("its scores are capped, and ONNX Runtime before 1.27 caps those of Attention after the mask")]
    Softcap,
    /// Another node reads a value inside of the attention, or an output of the graph returns it.
    #[error("{value:?} is computed inside of the attention and is also used elsewhere")]
    Read { value: String },
    /// Queries and caches are of different types.
    #[error("the queries are {queries}, and a cache is {cache}")]
    Types { queries: ElementType, cache: ElementType },
    /// The elements of a value that the attention reads are not known.
    #[error("the elements of {value:?} are not known")]
    Unknown { value: String },
    /// The attention cannot be evaluated.
    #[error(transparent)]
    Evaluation(#[from] OnnxError),
    /// The proofs of earlier attention operations used up the work that one conversion may do.
    #[error("not examined, since earlier proofs used up the work that one conversion may do")]
    Unproved,
    /// The attention computes other values than an `Attention` node.
    #[error(
        "Attention with scale {scale} and softcap {softcap} computes other values, which differ by {difference}"
    )]
    Differs { scale: f32, softcap: f32, difference: f64 },
}

/// The part of an attention operation that does not have the form that `Attention` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message describes it")]
pub enum KeptForm {
    #[error("the weights do not come from one softmax")]
    NoSoftmax,
    #[error("the scores are not one product of queries and keys")]
    NoProduct,
    #[error("its nodes do not lead from its queries and caches to its result")]
    NoRegion,
    #[error("its axes, bounds or repetitions depend on the length")]
    LengthDependence,
    #[error("keys or values are not a whole cache")]
    PartOfCache,
    #[error("keys or values are scaled")]
    ScaledCache,
    #[error("the values are scaled")]
    ScaledValues,
    #[error("the weights are scaled")]
    ScaledWeights,
    #[error("the scale is not a positive number")]
    Scale,
    #[error("the scores have two caps")]
    TwoCaps,
    #[error("something is added to the scores")]
    AddedToScores,
    #[error("a bias has no single axis of heads")]
    BiasHeads,
    #[error("the sinks are not [batch, heads, new tokens, 1]")]
    SinkShape,
    #[error("a sink is not one finite number for each head")]
    SinkNumbers,
    #[error("a sink depends on the position")]
    SinkByPosition,
    #[error("it has a sink, and its scores have another type than its caches")]
    SinkType,
    #[error("its scores have both a cap and a sink")]
    CapAndSink,
    #[error("the queries are not [batch, heads, new tokens, head size]")]
    QueriesShape,
    #[error("the result is not [batch, heads, new tokens, head size]")]
    ResultShape,
}
