//! Finds scales of activations that are computed from a whole tensor.

use std::collections::BTreeSet;

use super::hazard::Hazard;
use crate::{Graph, Node};

/// Finds the nodes whose scale depends on the model's inputs and affects an output.
///
/// Other scales do not change any result.
pub(super) fn find(graph: &Graph<'_>, hazards: &mut Vec<Hazard>) {
    if !graph.nodes().iter().any(scales_a_tensor) {
        return;
    }
    // A scale may depend on the shape of an input alone, so `computed_from` would miss some.
    let mut fed: BTreeSet<&str> = graph.fed_names().collect();
    for node in graph.nodes() {
        if node.reads().iter().any(|value| fed.contains(value)) {
            fed.extend(node.outputs());
        }
    }
    let is_fed = |node: &Node<'_>| node.reads().iter().any(|value| fed.contains(value));
    let mut scales: Vec<_> =
        graph.used_nodes().filter(|node| scales_a_tensor(node) && is_fed(node)).collect();
    scales.reverse();
    hazards.extend(scales.into_iter().map(|node| Hazard::TensorWideScale { node: node.label() }));
}

/// Returns `true` if a node computes one scale from all elements of its first input. Two operators of
/// `com.microsoft` contain a `DynamicQuantizeLinear`.
fn scales_a_tensor(node: &Node<'_>) -> bool {
    let is_fused = || matches!(node.op_type(), "DynamicQuantizeMatMul" | "DynamicQuantizeLSTM");
    node.is("DynamicQuantizeLinear") || (node.domain() == "com.microsoft" && is_fused())
}
