//! Finds `TensorScatter` nodes of a decoder that TensorRT's parser or builder rejects.
//!
//! Each of these nodes becomes a `KVCacheUpdate` layer. The core's [`Network`] implements the builder's
//! rules. This module describes the graph to it and adds the parser's rules. `Concat` and `Attention` do not
//! become `KVCacheUpdate` layers, so no rule applies to them here.

use std::collections::BTreeMap;

use kvscatter::Mode;
use kvscatter::spec::PartialTensor;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::{KvCacheUpdateLayer, Network, NetworkError, NetworkTensor, TensorSource};

use super::Decoder;
use super::trace::Path;
use crate::eval::Op;
use crate::{Graph, Node, NodeLabel, ValueInfo};

/// A rule of TensorRT that a node breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node:#}: {reason}")]
pub struct TensorRtRefusal {
    /// The label of the `TensorScatter` node.
    pub node: NodeLabel,
    /// The rule that it breaks.
    pub reason: TensorRtRule,
}

/// A rule of TensorRT's parser or builder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorRtRule {
    /// The parser accepts only axis -2 of 4 dimensions.
    #[error("axis = {axis}: must be -2 (or 2)")]
    Axis {
        /// The value of the node's attribute.
        axis: i64,
    },
    /// The parser accepts only `linear`, because `kLINEAR` is the only mode of the layer.
    #[error("mode = {mode}: linear is the only mode (kvscatter convert --window mask writes linear caches)")]
    Mode {
        /// The value of the node's attribute.
        mode: Mode,
    },
    /// A rule of the builder. Layers are numbered from 0, in the order of the `TensorScatter` nodes.
    #[error("{}", layer_error(.0))]
    Network(NetworkError),
}

impl Decoder<'_> {
    /// Returns every rule of TensorRT that a `TensorScatter` of the model breaks, in the order of the nodes.
    #[must_use]
    pub fn tensorrt_refusals(&self) -> Vec<TensorRtRefusal> {
        let nodes: Vec<_> = self.graph.nodes().iter().filter(|node| node.is("TensorScatter")).collect();
        let numbers = nodes.iter().enumerate().map(|(layer, node)| (node.index(), layer)).collect();
        let inputs = self.inputs.iter().map(|input| (input.value.name, &input.value)).collect();
        let read = nodes.iter().flat_map(|node| node.reads());
        let declared = read.filter_map(|value| Some((value, self.graph.declared(value)?))).collect();
        let layers = Layers { graph: &self.graph, numbers, inputs, declared: &declared };
        let ops: Vec<_> = nodes.iter().map(|node| Op::parse(node).ok()).collect();
        // Invalid nodes become layers as well, so that the layers of all other nodes keep their numbers.
        let described = nodes.iter().zip(&ops).map(|(node, op)| layers.describe(node, op.as_ref()));
        let network = Network { layers: described.collect() };

        let mut refusals = Vec::new();
        for ((node, op), broken) in nodes.iter().zip(&ops).zip(network.check()) {
            let Some(Op::TensorScatter { mode, past_cache, .. }) = *op else { continue };
            let mut reasons: Vec<_> =
                broken.into_iter().filter(is_of_tensorrt).map(TensorRtRule::Network).collect();
            if let Some(axis) = layers.wrong_axis(node, past_cache) {
                // The axis is listed after the rules about the cache's type, with the other rules about the
                // shape.
                let place = reasons.iter().take_while(|reason| is_of_type(reason)).count();
                reasons.insert(place, TensorRtRule::Axis { axis });
            }
            if mode != Mode::Linear {
                reasons.insert(0, TensorRtRule::Mode { mode });
            }
            refusals.extend(reasons.into_iter().map(|reason| TensorRtRefusal { node: node.label(), reason }));
        }
        refusals
    }
}

/// The `KVCacheUpdate` layers for a graph's `TensorScatter` nodes.
struct Layers<'g, 'm> {
    graph: &'g Graph<'m>,
    /// The layer number of each node.
    numbers: BTreeMap<usize, usize>,
    inputs: BTreeMap<&'m str, &'g ValueInfo<'m>>,
    /// The declarations of the values that the nodes read.
    declared: &'g BTreeMap<&'m str, ValueInfo<'m>>,
}

impl<'g, 'm> Layers<'g, 'm> {
    /// Describes the layer for a node. The inputs have the types and shapes that the graph declares. The
    /// graph often does not declare them for computed values.
    fn describe(&self, node: &Node<'m>, op: Option<&Op<'m>>) -> KvCacheUpdateLayer<'g> {
        let Some(&Op::TensorScatter { past_cache, update, write_indices, present_cache, .. }) = op else {
            return KvCacheUpdateLayer::default();
        };
        // With another axis, TensorRT's rules about the capacity would apply to the wrong dimension.
        let has_axis = self.wrong_axis(node, past_cache).is_none();
        let tensor = |name, declared: Option<&'g ValueInfo<'m>>, has_shape: bool| {
            let inferred = declared.map_or_else(PartialTensor::default, |info| PartialTensor {
                element: Some(info.element),
                shape: info.shape.as_deref().filter(|_| has_shape),
            });
            NetworkTensor { name, source: self.source(name), inferred }
        };
        let indices = |name| tensor(name, self.declared.get(name), true);
        KvCacheUpdateLayer {
            // TensorRT's rules about a cache's shape apply to an input of the network.
            cache: tensor(past_cache, self.inputs.get(past_cache).copied(), has_axis),
            update: tensor(update, self.declared.get(update), has_axis),
            write_indices: write_indices.map(indices).unwrap_or_default(),
            output_is_marked: self.graph.is_output(present_cache),
            ..KvCacheUpdateLayer::default()
        }
    }

    /// Returns the source of a value, through nodes that pass it on.
    fn source(&self, value: &'m str) -> TensorSource {
        if self.inputs.contains_key(value) {
            return TensorSource::NetworkInput;
        }
        let maker = self.graph.producer(Path::back(self.graph, value).source);
        let layer = maker.and_then(|(node, _)| self.numbers.get(&node.index()));
        layer.map_or(TensorSource::Computed, |&layer| TensorSource::KvCacheUpdateLayer(layer))
    }

    /// Returns the node's axis if the parser rejects it. The parser checks only caches of 4 dimensions.
    fn wrong_axis(&self, node: &Node<'_>, cache: &str) -> Option<i64> {
        let is_4d = self.inputs.get(cache)?.shape.as_ref()?.len() == 4;
        let axis = node.attribute("axis").and_then(|axis| axis.i).unwrap_or(TensorScatter::DEFAULT_AXIS);
        Some(axis).filter(|axis| is_4d && ![2, -2].contains(axis))
    }
}

/// Returns `true` if TensorRT is known to have the rule.
fn is_of_tensorrt(rule: &NetworkError) -> bool {
    !matches!(rule, NetworkError::CacheReadByLayer { .. })
}

fn is_of_type(reason: &TensorRtRule) -> bool {
    use kvscatter::Error::ElementType;
    matches!(reason, TensorRtRule::Network(NetworkError::Layer { error: ElementType { .. }, .. }))
}

/// Returns the text of an error without the number of its layer.
fn layer_error(error: &NetworkError) -> String {
    match error {
        NetworkError::Layer { error, .. } => error.to_string(),
        error => error.to_string(),
    }
}
