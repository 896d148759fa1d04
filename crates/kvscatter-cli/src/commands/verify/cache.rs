//! The only write of a cache in a graph.

use std::collections::BTreeSet;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter_onnx::{Graph, Node, Tensor};

use crate::operators::PLUGIN_DOMAIN;

/// The only node of a graph that writes a cache. Its past is an input of the graph.
pub(super) struct CacheWrite<'a> {
    node: &'a Node<'a>,
    inputs: &'a [(String, Tensor)],
    pub(super) past: &'a Tensor,
    /// The graph output that is the present.
    pub(super) present: usize,
    /// The graph outputs that are computed from the past without the write.
    pub(super) of_past: Vec<usize>,
}

/// A TensorScatter whose inputs are inputs of the graph.
pub(super) struct Scatter<'a> {
    pub(super) past: &'a Tensor,
    pub(super) update: &'a Tensor,
    pub(super) axis: usize,
    /// The start of each sample.
    pub(super) starts: Vec<i64>,
}

impl<'a> CacheWrite<'a> {
    /// Returns the write of a graph on these inputs. Returns `None` if the graph does not have exactly one, or if
    /// its past is not an input or its present not an output of the graph.
    pub(super) fn find(graph: &'a Graph<'a>, inputs: &'a [(String, Tensor)]) -> Option<Self> {
        let mut writes = graph.nodes().iter().filter_map(|node| Some((node, node.input(past_slot(node)?)?)));
        let (Some((node, past)), None) = (writes.next(), writes.next()) else { return None };
        let present = node.output(0)?;
        let of_write = computed_from(graph, present, None);
        let of_past = computed_from(graph, past, Some(node.index()));
        let is_of_past = |name: &str| of_past.contains(name) && !of_write.contains(name);
        Some(Self {
            node,
            inputs,
            past: tensor(inputs, past)?,
            present: graph.output_names().position(|name| name == present)?,
            of_past: graph
                .output_names()
                .enumerate()
                .filter(|(_, name)| is_of_past(name))
                .map(|(at, _)| at)
                .collect(),
        })
    }

    /// Returns the write as a TensorScatter with one start for each sample of the cache. Returns `None` for empty
    /// tensors, because their files do not bound the number of rows.
    pub(super) fn scatter(&self) -> Option<Scatter<'a>> {
        let update = tensor(self.inputs, self.node.input(1)?)?;
        if !self.node.is("TensorScatter") || self.past.elements() == 0 || update.elements() == 0 {
            return None;
        }
        let axis = self.node.int("axis").ok()?.unwrap_or(TensorScatter::DEFAULT_AXIS);
        let batch = *self.past.shape().first()?;
        let starts = match self.node.input(2) {
            None => vec![0; batch],
            Some(name) => tensor(self.inputs, name)?.int64s()?.collect(),
        };
        let scatter = Scatter {
            past: self.past,
            update,
            axis: TensorScatter::new().axis(axis).resolve_axis(self.past.shape().len()).ok()?,
            starts,
        };
        (scatter.starts.len() == batch).then_some(scatter)
    }
}

/// Returns the input of a node that is the cache, if the node writes one.
fn past_slot(node: &Node<'_>) -> Option<usize> {
    match (node.domain(), node.op_type()) {
        _ if node.is("TensorScatter") => Some(0),
        (PLUGIN_DOMAIN, "KVCacheUpdate") => Some(0),
        (PLUGIN_DOMAIN, "KVCacheOperation") => Some(2),
        _ => None,
    }
}

fn tensor<'a>(inputs: &'a [(String, Tensor)], name: &str) -> Option<&'a Tensor> {
    inputs.iter().find(|(input, _)| input == name).map(|(_, tensor)| tensor)
}

/// Returns the values that a value has an influence on, and itself. The node `without` is left out.
fn computed_from<'m>(graph: &Graph<'m>, value: &'m str, without: Option<usize>) -> BTreeSet<&'m str> {
    let mut values = BTreeSet::from([value]);
    for node in graph.nodes().iter().filter(|node| Some(node.index()) != without) {
        if node.reads().iter().any(|name| values.contains(name)) {
            values.extend(node.outputs());
        }
    }
    values
}
