//! Puts an edited graph in order: keeps only the nodes that are needed, sorts them, and drops stale shapes.

use std::collections::{BTreeMap, BTreeSet};

use crate::OnnxError;
use crate::order::sources_first;
use crate::proto::{GraphProto, NodeProto};
use crate::{GraphError, graph};

use crate::names::{reads, subgraphs_mut};

/// Keeps the nodes that an output depends on, and sorts them.
///
/// Each node is placed after the nodes that it reads from and otherwise keeps its place. Unused initializers
/// are dropped, and so are inputs in `unread` that no node reads, and the declared shapes of values that depend on
/// `changed` values.
///
/// Returns the index that each node had.
///
/// # Errors
/// Returns [`GraphError::Cycle`] for a node that depends on itself.
pub(super) fn finish(
    graph: &mut GraphProto,
    removed: &BTreeSet<usize>,
    unread: &BTreeSet<String>,
    mut changed: BTreeSet<String>,
) -> Result<Vec<usize>, OnnxError> {
    let order = {
        let links = Links::new(&graph.node, removed);
        sources_first(links.live(graph), |index| links.sources(index))
            .map_err(|index| cycle(&graph.node, index))?
    };
    let mut nodes: Vec<Option<NodeProto>> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.iter().filter_map(|&index| nodes.get_mut(index)?.take()).collect();
    for node in &mut graph.node {
        let outputs = node.output.iter().map(String::as_str);
        if reads(node).into_iter().chain(outputs).any(|name| changed.contains(name)) {
            changed.extend(node.output.iter().cloned());
            subgraphs_mut(node).for_each(drop_value_info);
        }
    }
    let used: BTreeSet<&str> = graph.node.iter().flat_map(reads).collect();
    let is_kept = |name: &String| !unread.contains(name) || used.contains(name.as_str());
    graph.input.retain(|input| input.name.as_ref().is_none_or(is_kept));
    prune_values(graph, &changed);
    Ok(order)
}

/// The dependencies between nodes.
struct Links<'g> {
    producers: BTreeMap<&'g str, usize>,
    /// The values that each node reads. The set is empty for a removed node.
    reads: Vec<BTreeSet<&'g str>>,
}

impl<'g> Links<'g> {
    fn new(nodes: &'g [NodeProto], removed: &BTreeSet<usize>) -> Self {
        let mut links = Self { producers: BTreeMap::new(), reads: Vec::with_capacity(nodes.len()) };
        for (index, node) in nodes.iter().enumerate() {
            if removed.contains(&index) {
                links.reads.push(BTreeSet::new());
                continue;
            }
            links.reads.push(reads(node));
            let outputs = node.output.iter().filter(|name| !name.is_empty());
            links.producers.extend(outputs.map(|name| (name.as_str(), index)));
        }
        links
    }

    /// Returns the nodes that a node reads from.
    fn sources(&self, index: usize) -> impl Iterator<Item = usize> {
        self.reads.get(index).into_iter().flatten().filter_map(|name| self.producers.get(name).copied())
    }

    /// Returns the nodes that an output of the graph depends on.
    fn live(&self, graph: &GraphProto) -> BTreeSet<usize> {
        let outputs = graph.output.iter().filter_map(|output| output.name.as_deref());
        let mut open: Vec<usize> = outputs.filter_map(|name| self.producers.get(name).copied()).collect();
        let mut live = BTreeSet::new();
        while let Some(index) = open.pop() {
            if live.insert(index) {
                open.extend(self.sources(index));
            }
        }
        live
    }
}

fn cycle(nodes: &[NodeProto], index: usize) -> OnnxError {
    match nodes.get(index) {
        Some(node) => graph::in_node(graph::label(index, node, None), GraphError::Cycle),
        None => GraphError::Cycle.into(),
    }
}

fn prune_values(graph: &mut GraphProto, changed: &BTreeSet<String>) {
    let mut used: BTreeSet<&str> = graph.node.iter().flat_map(reads).collect();
    // An initializer with the name of an input is that input's default, and is kept even if it is not used.
    used.extend(graph.input.iter().chain(&graph.output).filter_map(|value| value.name.as_deref()));
    let made = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let present: BTreeSet<&str> = used.iter().copied().chain(made).collect();
    let has = |names: &BTreeSet<&str>, name: Option<&str>| name.is_some_and(|name| names.contains(name));
    graph.initializer.retain(|tensor| has(&used, tensor.name.as_deref()));
    graph.value_info.retain(|value| {
        has(&present, value.name.as_deref())
            && !value.name.as_ref().is_some_and(|name| changed.contains(name))
    });
    graph.quantization_annotation.retain(|note| has(&present, note.tensor_name.as_deref()));
}

fn drop_value_info(graph: &mut GraphProto) {
    graph.value_info.clear();
    graph.node.iter_mut().flat_map(subgraphs_mut).for_each(drop_value_info);
}
