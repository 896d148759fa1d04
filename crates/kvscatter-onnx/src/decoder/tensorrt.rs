//! What TensorRT's parser and builder refuse of a decoder's `TensorScatter` nodes, each of which becomes a
//! `KVCacheUpdate` layer.
//!
//! The rules and their words are the core's, [`spec::tensorrt`](kvscatter::spec::tensorrt); here is only what a graph
//! says about them. Nothing is said about other operators: Concat and Attention are layers like any others, and make
//! no `KVCacheUpdate`.

use std::collections::BTreeMap;
use std::fmt;

use kvscatter::spec::tensorrt::{KvCacheUpdate, NetworkError};
use kvscatter::{Argument, Mode};

use super::trace::Path;
use super::{Decoder, Flow, Short};
use crate::eval::Op;
use crate::{Dimension, Node, NodeLabel, ValueInfo};

/// A rule that a node breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The `TensorScatter`.
    pub node: NodeLabel,
    /// The rule.
    pub reason: Reason,
}

/// Which rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The parser takes axis -2 of 4 dimensions only.
    Axis {
        /// The attribute.
        axis: i64,
    },
    /// The parser takes `linear` only: `kLINEAR` is the only mode of the layer.
    Mode {
        /// The attribute.
        mode: Mode,
    },
    /// A rule of the builder. Layers are numbered as the `TensorScatter` nodes are, from 0.
    Network(NetworkError),
}

impl Decoder<'_> {
    /// Every rule of TensorRT that a `TensorScatter` of the model breaks, in the order of the nodes.
    #[must_use]
    pub fn tensorrt_refusals(&self) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        // The layer that writes a cache.
        let mut layers = BTreeMap::new();
        let scatters = self.flow.nodes().iter().filter(|node| node.is("TensorScatter"));
        let numbers: BTreeMap<_, _> =
            scatters.clone().enumerate().map(|(layer, node)| (node.index(), layer)).collect();
        let inputs: BTreeMap<_, _> =
            self.inputs.iter().map(|input| (input.value.name, &input.value)).collect();
        for (layer, node) in scatters.enumerate() {
            let mut refuse = |reason| refusals.push(Refusal { node: node.label(), reason });
            let Ok(Op::TensorScatter { mode, past_cache, update, write_indices, present_cache, .. }) =
                Op::parse(node)
            else {
                continue;
            };
            if mode != Mode::Linear {
                refuse(Reason::Mode { mode });
            }
            let cache = inputs.get(past_cache);
            match cache {
                Some(cache) => of_cache(node, cache, layer, &mut refuse),
                None => refuse(Reason::Network(NetworkError::CacheNotNetworkInput { layer })),
            }
            if let Some(&first) = layers.get(past_cache) {
                refuse(Reason::Network(NetworkError::CacheSharedByLayers { layer, first }));
            }
            layers.entry(past_cache).or_insert(layer);
            let fed = [
                (Argument::Cache, Some(past_cache)),
                (Argument::Update, Some(update)),
                (Argument::TensorRtWriteIndices, write_indices),
            ];
            for (argument, value) in fed {
                if let Some(from) = value.and_then(|value| fed_by(&self.flow, value, &numbers)) {
                    refuse(Reason::Network(NetworkError::FedByLayer { layer, from, argument }));
                }
            }
            if !self.flow.is_output(present_cache) {
                refuse(Reason::Network(NetworkError::OutputNotMarked { layer }));
            }
        }
        refusals
    }
}

/// Type and shape, as far as they are declared.
fn of_cache(node: &Node<'_>, cache: &ValueInfo<'_>, layer: usize, refuse: &mut impl FnMut(Reason)) {
    let of_layer = |error| Reason::Network(NetworkError::Layer { layer, error });
    let (argument, element) = (Argument::Cache, cache.element);
    if !KvCacheUpdate::ELEMENT_TYPES.contains(&element) {
        refuse(of_layer(kvscatter::Error::ElementType { argument, element }));
    }
    let axis = node.attribute("axis").and_then(|axis| axis.i).unwrap_or(-2);
    let Some(shape) = &cache.shape else { return };
    match *shape.as_slice() {
        [_, _, capacity, _] => {
            if axis != 2 && axis != -2 {
                refuse(Reason::Axis { axis });
            } else if !matches!(capacity, Dimension::Known(_)) {
                refuse(Reason::Network(NetworkError::DynamicMaxSequenceLength { layer }));
            }
        }
        _ => {
            let (rank, expected) = (shape.len(), &[4][..]);
            refuse(of_layer(kvscatter::Error::Rank { argument, rank, expected }));
        }
    }
}

/// The layer whose output a value is, handed on at most.
fn fed_by<'m>(flow: &Flow<'m>, value: &'m str, numbers: &BTreeMap<usize, usize>) -> Option<usize> {
    let (node, _) = flow.maker(Path::back(flow, value).source)?;
    numbers.get(&node.index()).copied()
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Short(&self.node), self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Axis { axis } => write!(f, "axis = {axis}: must be -2 (or 2)"),
            Self::Mode { mode: Mode::Circular } => f.write_str("mode = circular: linear is the only mode"),
            Self::Mode { .. } => f.write_str("mode: linear is the only mode"),
            Self::Network(NetworkError::Layer { error, .. }) => error.fmt(f),
            Self::Network(error) => error.fmt(f),
        }
    }
}
