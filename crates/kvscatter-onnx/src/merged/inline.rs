//! Puts a branch of an `If` in its place.

use std::collections::{BTreeMap, BTreeSet};

use crate::edit::NewNode;
use crate::names::{Names, defined, subgraphs, subgraphs_mut};
use crate::proto::type_proto::Value as TypeValue;
use crate::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};

/// Replaces the `If` at this index by the nodes of one of its branches. The other branch and the input of the
/// graph that chose between them are removed.
pub(super) fn take_branch(graph: &mut GraphProto, at: usize, branch: &str) {
    let Some(node) = graph.node.get_mut(at) else { return };
    let mut all = std::mem::take(&mut node.attribute).into_iter();
    let Some(taken) = all.find(|attribute| attribute.name.as_deref() == Some(branch)) else { return };
    inline(graph, at, taken.g.into_option().unwrap_or_default());
}

/// Returns the graph with a branch in the place of the `If` at this index. Initializers have no values, so
/// that weights are not copied.
pub(super) fn without_weights(graph: &GraphProto, at: usize, branch: &GraphProto) -> GraphProto {
    let nodes = graph.node.iter().enumerate().map(|(index, node)| match index == at {
        true => NodeProto { attribute: Vec::new(), ..header(node) },
        false => node.clone(),
    });
    let mut inlined = GraphProto { node: nodes.collect(), ..declarations(graph) };
    inline(&mut inlined, at, GraphProto { node: branch.node.clone(), ..declarations(branch) });
    inlined
}

/// Returns a node without its attributes.
fn header(node: &NodeProto) -> NodeProto {
    NodeProto {
        name: node.name.clone(),
        op_type: node.op_type.clone(),
        domain: node.domain.clone(),
        input: node.input.clone(),
        output: node.output.clone(),
        ..NodeProto::default()
    }
}

/// Returns a graph without its nodes and without the values of its initializers.
fn declarations(graph: &GraphProto) -> GraphProto {
    let dims = |tensor: &TensorProto| TensorProto {
        name: tensor.name.clone(),
        dims: tensor.dims.clone(),
        data_type: tensor.data_type,
        ..TensorProto::default()
    };
    GraphProto {
        name: graph.name.clone(),
        input: graph.input.clone(),
        output: graph.output.clone(),
        initializer: graph.initializer.iter().map(dims).collect(),
        sparse_initializer: graph.sparse_initializer.clone(),
        value_info: graph.value_info.clone(),
        ..GraphProto::default()
    }
}

/// Replaces the node at this index by the nodes of a branch, which has no inputs. The graph input that the
/// node reads is removed.
fn inline(graph: &mut GraphProto, at: usize, mut branch: GraphProto) {
    let Some(node) = graph.node.get(at).map(header) else { return };
    let (new_names, copies) = new_names(graph, at, &node, &branch);
    rename(&mut branch, &new_names, &mut BTreeMap::new());
    // The declarations of the branch are more exact than those of the graph, which are those of one branch.
    for (output, declared) in node.output.iter().zip(&branch.output) {
        let outer = graph.output.iter_mut().find(|outer| outer.name.as_ref() == Some(output));
        if let Some(outer) = outer.filter(|outer| is_more_exact(declared, outer)) {
            outer.r#type = declared.r#type.clone();
        }
    }
    let GraphProto {
        node: nodes, initializer, sparse_initializer, value_info, quantization_annotation, ..
    } = branch;
    graph.node.splice(at..=at, nodes.into_iter().chain(copies));
    let condition = node.input.first();
    graph.input.retain(|input| input.name.as_ref() != condition);
    graph.initializer.retain(|tensor| tensor.name.as_ref() != condition);
    graph.initializer.extend(initializer);
    graph.sparse_initializer.extend(sparse_initializer);
    let values = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    let declared: BTreeSet<_> = values.filter_map(|value| value.name.clone()).collect();
    graph.value_info.extend(
        value_info.into_iter().filter(|value| value.name.as_ref().is_none_or(|it| !declared.contains(it))),
    );
    graph.quantization_annotation.extend(quantization_annotation);
}

/// Returns the new names of values and nodes of the branch, and the nodes that copy values of the branch to
/// outputs of the `If`.
///
/// A value of the branch gets the name of the output of the `If` that it becomes. Any other value or node
/// keeps its name, unless the outer graph uses that name.
fn new_names(
    graph: &GraphProto,
    at: usize,
    node: &NodeProto,
    branch: &GraphProto,
) -> (BTreeMap<String, String>, Vec<NodeProto>) {
    let outer = Names::of_graph_without(graph, at);
    let mut all = outer.clone();
    all.take_graph(branch);
    let made: BTreeSet<&str> = branch.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let mut nested = BTreeSet::new();
    branch.node.iter().flat_map(subgraphs).for_each(|graph| nested_names(graph, &mut nested));
    let mut new_names = BTreeMap::new();
    let mut copied = Vec::new();
    for (output, value) in node.output.iter().zip(&branch.output).filter(|(output, _)| !output.is_empty()) {
        let value = value.name.as_deref().unwrap_or_default();
        let is_free = value == output || !nested.contains(output.as_str());
        if made.contains(value) && is_free && !new_names.contains_key(value) {
            new_names.insert(value.to_owned(), output.clone());
        } else {
            copied.push((value, output));
        }
    }
    let node_names = branch.node.iter().filter_map(|node| node.name.as_deref());
    for name in defined(branch).chain(node_names).filter(|name| outer.contains(name)) {
        if !name.is_empty() && !new_names.contains_key(name) {
            new_names.insert(name.to_owned(), all.fresh(name));
        }
    }
    let copy = |(value, output): (&str, &String)| {
        let value = new_names.get(value).map_or(value, String::as_str);
        NewNode::new("Identity", &[value]).outputs(&[output]).into_proto(&mut all)
    };
    let copies = copied.into_iter().map(copy).collect();
    (new_names, copies)
}

/// Collects the names of values that a nested graph defines.
fn nested_names<'g>(graph: &'g GraphProto, names: &mut BTreeSet<&'g str>) {
    names.extend(defined(graph));
    graph.node.iter().flat_map(subgraphs).for_each(|graph| nested_names(graph, names));
}

/// Renames the values and nodes of a graph, also where nested graphs read them. A name that a nested graph
/// defines itself is another value and stays. `hidden` counts the nested graphs around that define a name.
fn rename(
    graph: &mut GraphProto,
    new_names: &BTreeMap<String, String>,
    hidden: &mut BTreeMap<String, usize>,
) {
    let change = |name: &mut String, hidden: &BTreeMap<String, usize>| {
        let new = new_names.get(name).filter(|_| hidden.get(name).is_none_or(|&count| count == 0));
        if let Some(new) = new {
            new.clone_into(name);
        }
    };
    for node in &mut graph.node {
        let NodeProto { name, input, output, .. } = node;
        name.iter_mut().chain(input).chain(output).for_each(|name| change(name, hidden));
        for nested in subgraphs_mut(node) {
            let own: Vec<_> =
                defined(nested).filter(|name| new_names.contains_key(*name)).map(str::to_owned).collect();
            for name in &own {
                let count = hidden.entry(name.clone()).or_default();
                *count = count.saturating_add(1);
            }
            rename(nested, new_names, hidden);
            for name in &own {
                let count = hidden.entry(name.clone()).or_default();
                *count = count.saturating_sub(1);
            }
        }
    }
    let values = graph.output.iter_mut().chain(&mut graph.value_info);
    values.filter_map(|value| value.name.as_mut()).for_each(|name| change(name, hidden));
    graph.initializer.iter_mut().filter_map(|it| it.name.as_mut()).for_each(|name| change(name, hidden));
    for note in &mut graph.quantization_annotation {
        let parameters = note.quant_parameter_tensor_names.iter_mut().filter_map(|it| it.value.as_mut());
        note.tensor_name.iter_mut().chain(parameters).for_each(|name| change(name, hidden));
    }
}

/// Returns `true` if a branch declares the shape of an output and the type is the one that the graph declares.
fn is_more_exact(branch: &ValueInfoProto, outer: &ValueInfoProto) -> bool {
    match (&branch.r#type.value, &outer.r#type.value) {
        (Some(TypeValue::TensorType(branch)), Some(TypeValue::TensorType(outer))) => {
            branch.shape.is_set() && branch.elem_type == outer.elem_type
        }
        _ => false,
    }
}
