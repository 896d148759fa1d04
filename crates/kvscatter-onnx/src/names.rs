//! Names of values and nodes: the names in use, the outer names that subgraphs read, and new names.

use std::collections::{BTreeMap, BTreeSet};

use crate::proto::{FunctionProto, GraphProto, NodeProto};

/// The names that a graph and its subgraphs use, so that new names do not clash.
///
/// In ONNX, values and nodes have separate namespaces. The stricter rule here is that all names are distinct.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    taken: BTreeSet<String>,
    /// The number to try next for each hint. Without this map, every new name would try all smaller numbers
    /// again.
    next: BTreeMap<String, u64>,
}

impl Names {
    pub(crate) fn of_graph(graph: &GraphProto) -> Self {
        let mut names = Self::default();
        names.take_graph(graph);
        names
    }

    pub(crate) fn of_function(function: &FunctionProto) -> Self {
        let mut names = Self::default();
        function.input.iter().chain(&function.output).for_each(|name| names.take(Some(name)));
        function.value_info.iter().for_each(|value| names.take(value.name.as_deref()));
        function.node.iter().for_each(|node| names.take_node(node));
        names
    }

    /// Returns the names that a graph uses outside of the subgraphs of one node.
    pub(crate) fn of_graph_without(graph: &GraphProto, node: usize) -> Self {
        let mut names = Self::default();
        names.take_declared(graph);
        for (index, proto) in graph.node.iter().enumerate() {
            if index == node {
                proto.input.iter().chain(&proto.output).for_each(|name| names.take(Some(name)));
            } else {
                names.take_node(proto);
            }
        }
        names
    }

    /// Returns `true` if a name is in use.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.taken.contains(name)
    }

    /// Returns an unused name: the hint, or the hint and a number.
    pub(crate) fn fresh(&mut self, hint: &str) -> String {
        if self.taken.insert(hint.to_owned()) {
            return hint.to_owned();
        }
        let next = self.next.entry(hint.to_owned()).or_insert(1);
        loop {
            let name = format!("{hint}_{next}");
            *next = next.saturating_add(1);
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    pub(crate) fn take(&mut self, name: Option<&str>) {
        self.taken.extend(name.map(str::to_owned));
    }

    pub(crate) fn take_graph(&mut self, graph: &GraphProto) {
        self.take_declared(graph);
        graph.node.iter().for_each(|node| self.take_node(node));
    }

    /// Takes the names of a graph that are not in its nodes.
    fn take_declared(&mut self, graph: &GraphProto) {
        for value in graph.input.iter().chain(&graph.output).chain(&graph.value_info) {
            self.take(value.name.as_deref());
        }
        graph.initializer.iter().for_each(|tensor| self.take(tensor.name.as_deref()));
        graph.sparse_initializer.iter().for_each(|sparse| self.take(sparse.values.name.as_deref()));
    }

    fn take_node(&mut self, node: &NodeProto) {
        self.take(node.name.as_deref());
        node.input.iter().chain(&node.output).for_each(|name| self.take(Some(name)));
        subgraphs(node).for_each(|graph| self.take_graph(graph));
    }
}

/// Returns the bodies in a node, such as those of `If`, `Loop` and `Scan`.
/// [`proto::decode`](crate::proto::decode) limits the depth of their nesting.
pub(crate) fn subgraphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.as_option().into_iter().chain(&attribute.graphs))
}

/// Returns the same bodies as [`subgraphs`], so that they can be changed.
pub(crate) fn subgraphs_mut(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute
        .iter_mut()
        .flat_map(|attribute| attribute.g.as_option_mut().into_iter().chain(&mut attribute.graphs))
}

/// Returns every value that a node reads: its inputs, and the outer values that its subgraphs read.
pub(crate) fn reads(node: &NodeProto) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = node.input.iter().map(String::as_str).collect();
    names.extend(subgraphs(node).flat_map(captures));
    names.remove("");
    names
}

/// Replaces `old` with `new` wherever the subgraphs of a node read it from an outer graph. Returns `true` if
/// any of them read `old`.
pub(crate) fn replace_captures(node: &mut NodeProto, old: &str, new: &str) -> bool {
    let mut replaced = false;
    for graph in subgraphs_mut(node) {
        replaced |= replace_captured(graph, old, new);
    }
    replaced
}

/// Replaces `old` with `new` in the inputs of a node as well as in its subgraphs.
fn replace_reads(node: &mut NodeProto, old: &str, new: &str) -> bool {
    let mut replaced = false;
    for input in node.input.iter_mut().filter(|input| *input == old) {
        new.clone_into(input);
        replaced = true;
    }
    replace_captures(node, old, new) || replaced
}

/// Returns the values that a subgraph reads from outside.
pub(crate) fn captures(graph: &GraphProto) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = graph.node.iter().flat_map(reads).collect();
    names.extend(graph.output.iter().filter_map(|output| output.name.as_deref()));
    for name in defined(graph) {
        names.remove(name);
    }
    names
}

fn replace_captured(graph: &mut GraphProto, old: &str, new: &str) -> bool {
    if defined(graph).any(|name| name == old) {
        return false;
    }
    let mut replaced = false;
    for output in graph.output.iter_mut().filter(|output| output.name.as_deref() == Some(old)) {
        output.name = Some(new.to_owned());
        replaced = true;
    }
    graph.node.iter_mut().fold(replaced, |replaced, node| replace_reads(node, old, new) || replaced)
}

/// Returns the values that a graph defines: its inputs, its initializers and the outputs of its nodes.
pub(crate) fn defined(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
    let initializers = graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref());
    let sparse = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.name.as_deref());
    let outputs = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    inputs.chain(initializers).chain(sparse).chain(outputs)
}
