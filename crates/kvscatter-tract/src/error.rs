//! The error about a node that cannot be built or run.

use std::fmt::Display;

use tract_onnx::pb::NodeProto;

/// The reason why a node cannot be built or run. It is the source of the error that tract returns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node:?} ({op}): {why}")]
pub(crate) struct NodeError {
    /// The node's name, or the name of its first output if the node has none.
    pub(crate) node: String,
    /// The name of the operator, with its domain unless ONNX defines the operator.
    pub(crate) op: String,
    /// The reason, in one line.
    pub(crate) why: String,
}

impl NodeError {
    pub(crate) fn new(node: &NodeProto, why: impl Display) -> Self {
        Self { node: label(node), op: operator(node), why: why.to_string() }
    }
}

/// Returns the node's name, or the name of its first output if the node has none.
pub(crate) fn label(node: &NodeProto) -> String {
    let names = [&node.name].into_iter().chain(&node.output);
    names.into_iter().find(|name| !name.is_empty()).cloned().unwrap_or_default()
}

/// Returns `true` if ONNX defines the operator of a node.
pub(crate) fn is_onnx(node: &NodeProto) -> bool {
    matches!(node.domain.as_str(), "" | "ai.onnx")
}

fn operator(node: &NodeProto) -> String {
    if is_onnx(node) { node.op_type.clone() } else { format!("{}.{}", node.domain, node.op_type) }
}
