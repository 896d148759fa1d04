//! One case of the corpus.

use super::rules::Operator;
use crate::cases::attention::AttentionCase;
use crate::cases::{Call, Case};

/// One case of the corpus.
#[derive(Clone, Debug)]
pub struct CorpusCase {
    /// The identifier of the [`Rule`](super::Rule).
    pub rule: &'static str,
    /// The name of the case below its rule. It consists of lower-case letters, digits and `-`.
    pub name: &'static str,
    /// What the case tests, as one sentence.
    pub what: &'static str,
    /// The call.
    pub call: CorpusCall,
}

/// The call of a case.
#[derive(Clone, Debug)]
pub enum CorpusCall {
    /// A node that writes a cache, and the form of the model around it.
    Write(Box<Case>, Form),
    /// A model of two nodes that write one cache.
    TwoWrites(Box<[Case; 2]>, TwoWrites),
    /// A node of ONNX `Attention`.
    Attention(Box<AttentionCase>, AttentionForm),
}

impl CorpusCall {
    /// Returns the operator that the call tests.
    #[must_use]
    pub fn operator(&self) -> Operator {
        let write = match self {
            Self::Attention(..) => return Operator::Attention,
            Self::TwoWrites(writes, _) => &writes[0],
            Self::Write(write, _) => write,
        };
        match write.call {
            Call::TensorScatter { .. } => Operator::TensorScatter,
            Call::KvCacheUpdate { .. } => Operator::KvCacheUpdate,
            Call::KvCacheOperation { .. } => Operator::KvCacheOperation,
        }
    }
}

/// The form of a model with one `Attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionForm {
    /// The model imports this operator set.
    pub operator_set: i64,
    /// Whether `present_key` and `present_value` are outputs, too.
    pub has_present: bool,
}

/// The form of a model with one node that writes a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every dimension is declared, and every value is in `raw_data`.
    Plain,
    /// Every dimension is another symbol.
    Symbols,
    /// The values of all tensors are in the typed fields of ONNX.
    TypedFields,
    /// The node has a third input with an empty name.
    EmptyIndicesName,
    /// The past is an output of the model, too.
    PastIsOutput,
    /// The update is the past itself.
    UpdateIsPast,
    /// The model breaks a rule of ONNX, so it must be refused.
    Fault(Fault),
}

/// A rule of ONNX that a model breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The model imports this operator set.
    OperatorSet(i64),
    /// The node has an attribute that the operator does not define.
    UnknownAttribute,
    /// The attribute `axis` is a string.
    AxisIsString,
    /// The node has one input.
    OneInput,
    /// The node has four inputs.
    FourInputs,
    /// The node has two outputs.
    TwoOutputs,
    /// The node of `KVCacheUpdate` has the attribute `cache_mode` with the value `circular`.
    CircularCacheMode,
    /// `write_indices` is int32.
    Int32Indices,
    /// `write_indices` has the shape `[batch, 1]`.
    IndicesOfRank2,
}

/// How two writes of one cache are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoWrites {
    /// Both read the past. Both presents are outputs.
    OfOnePast,
    /// The second reads the present of the first. Only its present is an output.
    InARow,
}
