//! The description of a `KVCacheUpdate` layer in a network, and the rules that a network can break.
//!
//! DLA does not support the layer, so this module has no rule for DLA.

use core::fmt;

use super::AttentionIoForm;
use crate::argument::Argument;
use crate::error::Error;
use crate::spec::PartialTensor;

/// A `KVCacheUpdate` layer of a network (`IKVCacheUpdateLayer`).
#[derive(Clone, Copy, Debug, Default)]
pub struct KvCacheUpdateLayer<'a> {
    /// The cache, a `[b, d, s_max, h]` tensor.
    pub cache: NetworkTensor<'a>,
    /// The update with the new rows.
    pub update: NetworkTensor<'a>,
    /// The `writeIndices`, one for each sample.
    pub write_indices: NetworkTensor<'a>,
    /// The cumulative lengths of a packed update (`setUpdateLengths`).
    pub update_lengths: Option<NetworkTensor<'a>>,
    /// The form of the update (`setUpdateForm`).
    pub form: AttentionIoForm,
    /// Whether the layer's output is marked as an output of the network (`markOutput`).
    pub output_is_marked: bool,
}

/// The known facts about a tensor of a network (`ITensor`). An unknown fact never breaks a rule.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkTensor<'a> {
    /// The name. Tensors with the same name are the same tensor, unless the name is empty.
    pub name: &'a str,
    /// The place where the tensor comes from.
    pub source: TensorSource,
    /// The known facts about the type and the dimensions.
    pub inferred: PartialTensor<'a>,
}

/// The place where a tensor of a network comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorSource {
    /// The tensor is an input of the network.
    NetworkInput,
    /// The tensor is the output of this `KVCacheUpdate` layer, or of layers that only pass that output on.
    KvCacheUpdateLayer(usize),
    /// Another layer computes the tensor.
    #[default]
    Computed,
}

/// A rule that a network breaks. `layer` is the index of the layer that breaks it, and `argument` an input of
/// the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's comment and its names describe the other fields")]
pub enum NetworkError {
    /// The types or the shapes of a layer break a rule of `KVCacheUpdate`.
    Layer { layer: usize, error: Error },
    /// The cache's sequence dimension, `maxSequenceLength`, is dynamic.
    DynamicMaxSequenceLength { layer: usize },
    /// The cache is not an input of the network.
    CacheNotNetworkInput { layer: usize },
    /// The output of the layer is not marked as an output of the network.
    OutputNotMarked { layer: usize },
    /// Another layer, the `first`, writes the same cache.
    CacheSharedByLayers { layer: usize, first: usize },
    /// An input of the layer is the output of the `KVCacheUpdate` layer `from`.
    FedByLayer { layer: usize, from: usize, argument: Argument },
    /// An input of the layer is the cache of the layer `cache_of`, so it would be read while it is written.
    ///
    /// kvscatter extension; not part of the specification. It is not known what TensorRT does in this case.
    CacheReadByLayer { layer: usize, cache_of: usize, argument: Argument },
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer { layer, error } => write!(f, "layer {layer}: {error}"),
            Self::DynamicMaxSequenceLength { layer } => {
                write!(f, "layer {layer}: the cache's maximum sequence length must not be dynamic")
            }
            Self::CacheNotNetworkInput { layer } => {
                write!(f, "layer {layer}: the cache must be an input of the network")
            }
            Self::OutputNotMarked { layer } => {
                write!(f, "layer {layer}: its output must be marked as an output of the network")
            }
            Self::CacheSharedByLayers { layer, first } => {
                write!(f, "layer {layer}: its cache is already written by layer {first}")
            }
            Self::FedByLayer { layer, from, argument } => {
                write!(
                    f,
                    "layer {layer}: {argument} is the output of layer {from}, must not come from a layer"
                )
            }
            Self::CacheReadByLayer { layer, cache_of, argument } => {
                write!(
                    f,
                    "layer {layer}: {argument} is the cache of layer {cache_of}, which is being written"
                )
            }
        }
    }
}

impl core::error::Error for NetworkError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Layer { error, .. } => Some(error),
            _ => None,
        }
    }
}
