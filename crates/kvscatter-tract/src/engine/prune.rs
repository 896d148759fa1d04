//! What a model's file has that its plan does not need, and what no plan can be made of.

use std::collections::BTreeSet;

use tract_onnx::Onnx;
use tract_onnx::pb::{GraphProto, NodeProto};

use crate::NodeError;
use crate::error::is_onnx;

/// Operators of which all outputs but the first may be left out, as their specifications say. tract refuses some of
/// those outputs, and exporters name them whether anyone reads them or not.
const OPTIONAL_OUTPUTS: [&str; 9] = [
    "Attention",
    "Dropout",
    "GroupQueryAttention",
    "LayerNormalization",
    "MultiHeadAttention",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "SoftmaxCrossEntropyLoss",
];

/// Takes away what nobody reads: nodes, and optional outputs.
pub(super) fn prune(graph: &mut GraphProto) {
    // A node may be read only by one that is taken away: until nothing changes.
    loop {
        let read = reads(graph);
        let before = graph.node.len();
        graph.node.retain(|node| node.output.iter().any(|output| read.contains(output)));
        for node in &mut graph.node {
            if !OPTIONAL_OUTPUTS.contains(&node.op_type.as_str()) {
                continue;
            }
            let unread = node.output.iter_mut().skip(1).filter(|output| !read.contains(*output));
            unread.for_each(String::clear);
            while node.output.last().is_some_and(String::is_empty) {
                node.output.pop();
            }
        }
        if graph.node.len() == before {
            return;
        }
    }
}

/// The values that anything reads, in graphs inside nodes too.
fn reads(graph: &GraphProto) -> BTreeSet<String> {
    let mut read: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
    for node in &graph.node {
        read.extend(node.input.iter().cloned());
        for inner in graphs(node) {
            read.extend(reads(inner));
        }
    }
    read.remove("");
    read
}

fn graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// # Errors
/// The first node whose operator is not known, and outputs of the graph that nothing makes.
pub(super) fn check(graph: &GraphProto, onnx: &Onnx) -> Result<(), NodeError> {
    let mut made: BTreeSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    made.extend(graph.initializer.iter().map(|tensor| tensor.name.as_str()));
    made.extend(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)));
    if let Some(output) = graph.output.iter().find(|output| !made.contains(output.name.as_str())) {
        let why = "no node, input or initializer is of this name".to_owned();
        return Err(NodeError { node: output.name.clone(), op: "graph output".to_owned(), why });
    }
    check_operators(graph, onnx)
}

fn check_operators(graph: &GraphProto, onnx: &Onnx) -> Result<(), NodeError> {
    for node in &graph.node {
        // tract's register has no domains; in the two that it knows, no name means two things but Attention's.
        let is_of_known_domain = is_onnx(node) || node.domain == "com.microsoft";
        if !is_of_known_domain || !onnx.op_register.0.contains_key(&node.op_type) {
            return Err(NodeError::of(node, "tract does not have this operator"));
        }
        for inner in graphs(node) {
            check_operators(inner, onnx)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tract_onnx::pb::{GraphProto, NodeProto, ValueInfoProto};

    use super::prune;

    fn node(op_type: &str, input: &[&str], output: &[&str]) -> NodeProto {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        NodeProto {
            op_type: op_type.to_owned(),
            input: owned(input),
            output: owned(output),
            ..NodeProto::default()
        }
    }

    #[test]
    fn what_nobody_reads_goes_and_what_a_definition_counts_stays() {
        let mut graph = GraphProto {
            node: vec![
                node("Split", &["x"], &["a", "unread"]),
                node("SkipSimplifiedLayerNormalization", &["a"], &["b", "mean", "variance", "sum"]),
                node("SkipSimplifiedLayerNormalization", &["b", "sum"], &["c", "mean2", "variance2", "sum2"]),
                node("Neg", &["sum2"], &["d"]),
                node("Neg", &["d"], &["e"]),
            ],
            output: vec![ValueInfoProto { name: "c".to_owned(), ..ValueInfoProto::default() }],
            ..GraphProto::default()
        };
        prune(&mut graph);
        let outputs: Vec<&[String]> = graph.node.iter().map(|node| node.output.as_slice()).collect();
        assert_eq!(outputs, [&["a", "unread"][..], &["b", "", "", "sum"], &["c"]]);
    }
}
