//! The reasons why an evaluation here has no outputs.

use kvscatter::ElementType;
use kvscatter_attention::AttentionError;
use kvscatter_onnx::{EvalError, GraphError, NodeLabel, OnnxError};

use crate::refused::RefusedRule;

/// The reason why an evaluation has no outputs.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejection {
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error("{node}: {fault}")]
    InNode { node: Box<NodeLabel>, fault: NodeFault },
}

/// An error about the node of an operator that kvscatter-onnx does not evaluate.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeFault {
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    #[error(transparent)]
    Attention(#[from] AttentionError),
    #[error("{input} is {got}, must be {expected}")]
    InputType { input: &'static str, got: ElementType, expected: String },
    #[error("{name} = {value:?}: must be {expected}")]
    Attribute { name: &'static str, value: String, expected: &'static str },
    #[error("the update is packed, so there must be update_lengths")]
    UpdateLengthsMissing,
    #[error("the update is padded, so there must be no update_lengths")]
    UpdateLengthsUnexpected,
}

impl Rejection {
    /// Returns the rule of the operator that the inputs break, if it is one.
    pub(super) fn rule(&self) -> Option<RefusedRule> {
        match self {
            Self::Onnx(error) | Self::InNode { fault: NodeFault::Onnx(error), .. } => match error.cause() {
                Some(GraphError::OpsetTooOld { .. }) => Some(RefusedRule::OperatorSet),
                Some(GraphError::AttributeUnknown { .. }) => Some(RefusedRule::AttributeUnknown),
                Some(GraphError::AttributeType { .. }) => Some(RefusedRule::AttributeType),
                Some(GraphError::InputCount { .. }) => Some(RefusedRule::InputCount),
                Some(GraphError::OutputCount { .. }) => Some(RefusedRule::OutputCount),
                _ if matches!(error.cause(), Some(EvalError::Mode { .. })) => Some(RefusedRule::Mode),
                _ => error.cause().and_then(RefusedRule::of_write),
            },
            Self::InNode { fault, .. } => match fault {
                NodeFault::Onnx(_) => None,
                NodeFault::Write(error) => RefusedRule::of_write(error),
                NodeFault::Attention(error) => RefusedRule::of_attention(error),
                NodeFault::InputType { .. } => Some(RefusedRule::TypesDiffer),
                NodeFault::Attribute { name: "cache_mode", .. } => Some(RefusedRule::Mode),
                NodeFault::Attribute { .. } => None,
                NodeFault::UpdateLengthsMissing => Some(RefusedRule::UpdateLengthsMissing),
                NodeFault::UpdateLengthsUnexpected => Some(RefusedRule::UpdateLengthsUnexpected),
            },
        }
    }
}
