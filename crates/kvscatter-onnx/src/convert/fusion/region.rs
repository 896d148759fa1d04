//! The nodes of each attention operation, from its queries and caches to its result.

use std::collections::{BTreeMap, BTreeSet};

use super::Operands;
use crate::{Graph, Node};

/// The maximum number of nodes between the operands and the result of an attention operation. It bounds the time for a
/// hostile graph.
const MAX_NODES: usize = 1024;

/// The nodes that one attention operation consists of.
#[derive(Debug, Default)]
pub(super) struct Region<'m> {
    /// The nodes in order. It is empty if the result is not computed from the operands, or by too many nodes.
    pub(super) nodes: Vec<Node<'m>>,
    /// A value inside of the region that a node outside of all regions reads, or that the graph returns. It may also be
    /// scores or weights that another region has as well.
    pub(super) escaped: Option<&'m str>,
    /// The values inside of the region that depend on queries and caches.
    scores: BTreeSet<&'m str>,
}

/// Returns the region of each attention operation.
///
/// Layers that share a cache or queries share nodes, such as those that repeat heads. Such nodes are in several
/// regions. The shape of a query or of a cache is not part of a region, because it is known without one.
pub(super) fn regions<'m>(graph: &Graph<'m>, attentions: &[&Operands]) -> Vec<Region<'m>> {
    let paths = Paths::new(graph, attentions);
    let mut regions: Vec<_> = attentions.iter().map(|operands| paths.region(operands)).collect();
    let mut inside: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut owned = BTreeSet::new();
    for (at, (region, operands)) in regions.iter().zip(attentions).enumerate() {
        owned.extend(region.nodes.iter().map(Node::index));
        let outputs = region.nodes.iter().flat_map(Node::outputs).filter(|it| *it != operands.output);
        outputs.for_each(|output| inside.entry(output).or_default().push(at));
    }
    let outside = graph.nodes().iter().filter(|node| !owned.contains(&node.index()));
    let read: BTreeSet<_> = outside.flat_map(Node::reads).chain(graph.output_names()).collect();
    for (value, of) in inside {
        for &at in &of {
            if let Some(region) = regions.get_mut(at)
                && (read.contains(value) || (of.len() > 1 && region.scores.contains(value)))
            {
                region.escaped = Some(value);
            }
        }
    }
    regions
}

/// The values that are computed from the queries and caches of attention operations, up to their results.
struct Paths<'g, 'm> {
    graph: &'g Graph<'m>,
    values: BTreeSet<&'m str>,
    /// The queries, caches and results of all attention operations.
    ends: BTreeSet<&'g str>,
}

impl<'g, 'm> Paths<'g, 'm> {
    fn new(graph: &'g Graph<'m>, attentions: &[&'g Operands]) -> Self {
        let starts: BTreeSet<_> = attentions.iter().flat_map(|operands| starts(operands)).collect();
        let ends = starts
            .iter()
            .copied()
            .chain(attentions.iter().map(|operands| operands.output.as_str()))
            .collect();
        let mut paths = Self { graph, values: BTreeSet::new(), ends };
        for node in graph.nodes() {
            let is_inside = |value: &str| paths.values.contains(value) && !paths.ends.contains(value);
            if is_reached(node, |value| starts.contains(value), is_inside) {
                paths.values.extend(node.outputs());
            }
        }
        paths
    }

    /// Returns the nodes between the operands and the result of an attention operation.
    fn region(&self, operands: &Operands) -> Region<'m> {
        let mut before = BTreeSet::new();
        let mut pending = vec![operands.output.as_str()];
        while let Some(value) = pending.pop() {
            let is_end = self.ends.contains(value) && value != operands.output;
            if is_end || !self.values.contains(value) {
                continue;
            }
            let Some((node, _)) = self.graph.producer(value).filter(|(node, _)| before.insert(node.index()))
            else {
                continue;
            };
            if before.len() > MAX_NODES {
                return Region::default();
            }
            pending.extend(node.reads());
        }
        // A node that does not depend on these operands is outside of the region, which reads its outputs.
        let [mut of_queries, mut of_caches] = [BTreeSet::new(), BTreeSet::new()];
        let mut region = Region::default();
        for node in before.iter().filter_map(|&index| self.graph.nodes().get(index)) {
            let [queries, caches @ ..] = starts(operands);
            let reads_queries = is_reached(node, |it| it == queries, |it| of_queries.contains(it));
            let reads_caches = is_reached(node, |it| caches.contains(&it), |it| of_caches.contains(it));
            of_queries.extend(node.outputs().filter(|_| reads_queries));
            of_caches.extend(node.outputs().filter(|_| reads_caches));
            region.scores.extend(node.outputs().filter(|_| reads_queries && reads_caches));
            if reads_queries || reads_caches {
                region.nodes.push(*node);
            }
        }
        if of_caches.contains(operands.output.as_str()) { region } else { Region::default() }
    }
}

fn starts(operands: &Operands) -> [&str; 3] {
    [&operands.queries, &operands.keys, &operands.values].map(String::as_str)
}

/// Returns `true` if a node reads a value inside of a region, or more than the shape of a value at its start.
fn is_reached(node: &Node<'_>, is_start: impl Fn(&str) -> bool, is_inside: impl Fn(&str) -> bool) -> bool {
    let asks_for_shape = node.is("Shape") || node.is("Size");
    node.reads().iter().any(|value| is_inside(value) || (!asks_for_shape && is_start(value)))
}
