//! Scales of activations that are computed from a whole tensor.

use super::Hazard;
use crate::Node;
use crate::decoder::flow::Flow;

pub(super) fn of(flow: &Flow<'_>, hazards: &mut Vec<Hazard>) {
    let scales = flow.nodes().iter().filter(|node| scales_a_tensor(node));
    hazards.extend(scales.map(|node| Hazard::TensorWideScale { node: node.label() }));
}

/// Whether a node computes one scale from all elements of its first input. `com.microsoft` has operators that contain
/// a `DynamicQuantizeLinear`.
fn scales_a_tensor(node: &Node<'_>) -> bool {
    let is_fused = || matches!(node.op_type(), "DynamicQuantizeMatMul" | "DynamicQuantizeLSTM");
    node.is("DynamicQuantizeLinear") || (node.domain() == "com.microsoft" && is_fused())
}
