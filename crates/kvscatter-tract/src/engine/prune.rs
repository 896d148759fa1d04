//! Removes the parts of a model that its plan does not need, and checks for parts that tract cannot load.

use std::collections::{BTreeMap, BTreeSet};

use tract_onnx::Onnx;
use tract_onnx::pb::tensor_proto::DataType as TensorType;
use tract_onnx::pb::type_proto::Value as Type;
use tract_onnx::pb::{GraphProto, NodeProto};

use crate::error::{NodeError, is_onnx};

/// The operators whose outputs are all optional in the specification, except for the first.
///
/// tract does not support some of these outputs. Exporters name them even if they are not used.
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

/// Removes nodes and optional outputs from which no output of the graph is computed.
pub(super) fn prune(graph: &mut GraphProto) {
    let read = reads(graph);
    graph.node.retain(|node| node.output.iter().any(|output| read.contains(output)));
    for node in graph.node.iter_mut().filter(|node| OPTIONAL_OUTPUTS.contains(&node.op_type.as_str())) {
        let unread = node.output.iter_mut().skip(1).filter(|output| !read.contains(*output));
        unread.for_each(String::clear);
        while node.output.last().is_some_and(String::is_empty) {
            node.output.pop();
        }
    }
}

/// Returns the outputs of the graph and the values from which they are computed. Each node is visited once.
fn reads(graph: &GraphProto) -> BTreeSet<String> {
    let mut makers: BTreeMap<&str, Vec<&NodeProto>> = BTreeMap::new();
    for node in &graph.node {
        for output in &node.output {
            makers.entry(output).or_default().push(node);
        }
    }
    let mut read = BTreeSet::new();
    let mut pending: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    while let Some(value) = pending.pop() {
        if value.is_empty() || !read.insert(value.to_owned()) {
            continue;
        }
        for node in makers.remove(value).into_iter().flatten() {
            named(node, &mut pending);
        }
    }
    read
}

/// Collects the names of the inputs of a node, and those of the inputs and results of graphs inside it.
pub(super) fn named<'a>(node: &'a NodeProto, names: &mut Vec<&'a str>) {
    names.extend(node.input.iter().map(String::as_str));
    for inner in graphs(node) {
        names.extend(inner.output.iter().map(|output| output.name.as_str()));
        inner.node.iter().for_each(|node| named(node, names));
    }
}

fn graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// Checks that tract supports all operators, and that a node, input or initialiser provides each output of the graph.
/// Returns an error for the first output without a source, the first bfloat16 initialiser or input, or the first node
/// with an unknown operator.
pub(super) fn check(graph: &GraphProto, onnx: &Onnx) -> Result<(), NodeError> {
    let mut made: BTreeSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    made.extend(graph.initializer.iter().map(|tensor| tensor.name.as_str()));
    made.extend(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)));
    if let Some(output) = graph.output.iter().find(|output| !made.contains(output.name.as_str())) {
        let why = "no node, input or initializer is of this name".to_owned();
        return Err(NodeError { node: output.name.clone(), op: "graph output".to_owned(), why });
    }
    let bfloat16 = TensorType::Bfloat16 as i32;
    let initializers = graph.initializer.iter().map(|tensor| (&tensor.name, tensor.data_type, "initializer"));
    let inputs = graph.input.iter().filter_map(|input| {
        let Type::TensorType(tensor) = input.r#type.as_ref()?.value.as_ref()?;
        Some((&input.name, tensor.elem_type, "input"))
    });
    if let Some((name, _, role)) = initializers.chain(inputs).find(|(_, element, _)| *element == bfloat16) {
        let why = "tract does not have bfloat16".to_owned();
        return Err(NodeError { node: name.clone(), op: role.to_owned(), why });
    }
    check_operators(graph, onnx)
}

fn check_operators(graph: &GraphProto, onnx: &Onnx) -> Result<(), NodeError> {
    for node in &graph.node {
        // tract's register does not distinguish domains. Only the name Attention has different meanings in
        // the two domains.
        let is_of_known_domain = is_onnx(node) || node.domain == "com.microsoft";
        if !is_of_known_domain || !onnx.op_register.0.contains_key(&node.op_type) {
            return Err(NodeError::new(node, "tract does not have this operator"));
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
    fn unread_nodes_go_and_nodes_that_a_definition_counts_stay() {
        let mut graph = GraphProto {
            node: vec![
                node("Split", &["x"], &["a", "unread"]),
                node("SkipSimplifiedLayerNormalization", &["a"], &["b", "mean", "variance", "sum"]),
                node("SkipSimplifiedLayerNormalization", &["b", "sum"], &["c", "mean2", "variance2", "sum2"]),
                node("Neg", &["sum2"], &["d"]),
                node("Neg", &["d"], &["e"]),
                node("Add", &["f", "x"], &["g"]),
                node("Neg", &["g"], &["f"]),
            ],
            output: vec![ValueInfoProto { name: "c".to_owned(), ..ValueInfoProto::default() }],
            ..GraphProto::default()
        };
        prune(&mut graph);
        let outputs: Vec<&[String]> = graph.node.iter().map(|node| node.output.as_slice()).collect();
        assert_eq!(outputs, [&["a", "unread"][..], &["b", "", "", "sum"], &["c"]]);
    }

    #[test]
    fn a_long_chain_without_readers_is_removed_at_once() {
        let names: Vec<String> = (0..=200_000).map(|index| format!("v{index}")).collect();
        let chain = names.windows(2).map(|pair| node("Neg", &[&pair[0]], &[&pair[1]]));
        let mut graph = GraphProto { node: chain.collect(), ..GraphProto::default() };
        prune(&mut graph);
        assert!(graph.node.is_empty());
    }
}
