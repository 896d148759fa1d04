//! The facts of a `KVCacheUpdate` layer in a network, and the rules that it may break.
//!
//! DLA does not support the layer, so there is no rule here for it.

use core::fmt;

use super::AttentionIoForm;
use crate::argument::Argument;
use crate::error::Error;
use crate::spec::PartialTensor;

/// A layer of a network (`IKVCacheUpdateLayer`).
#[derive(Clone, Copy, Debug, Default)]
pub struct KvCacheUpdateLayer<'a> {
    /// `[b, d, s_max, h]`.
    pub cache: NetworkTensor<'a>,
    /// The new rows.
    pub update: NetworkTensor<'a>,
    /// `writeIndices`, one for each sample.
    pub write_indices: NetworkTensor<'a>,
    /// The cumulative lengths of a packed update (`setUpdateLengths`).
    pub update_lengths: Option<NetworkTensor<'a>>,
    /// How the update holds its samples (`setUpdateForm`).
    pub form: AttentionIoForm,
    /// Whether the layer's output is marked as an output of the network (`markOutput`).
    pub output_is_marked: bool,
}

/// A tensor of a network (`ITensor`), as far as it is known. Only what is known can break a rule.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkTensor<'a> {
    /// Its name. Tensors with one name are one tensor, unless it is empty.
    pub name: &'a str,
    /// Where it comes from.
    pub source: TensorSource,
    /// Its type and its dimensions.
    pub inferred: PartialTensor<'a>,
}

/// Where a tensor of a network comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorSource {
    /// It is an input of the network.
    NetworkInput,
    /// It is the output of this `KVCacheUpdate` layer, or of layers that only hand that output on.
    KvCacheUpdateLayer(usize),
    /// Another layer computes it.
    #[default]
    Computed,
}

/// A rule that a network breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkError {
    /// The types or the shapes of a layer break a rule of `KVCacheUpdate`.
    Layer {
        /// Which layer.
        layer: usize,
        /// The rule.
        error: Error,
    },
    /// The cache's sequence dimension, maxSequenceLength, is dynamic.
    DynamicMaxSequenceLength {
        /// Which layer.
        layer: usize,
    },
    /// The cache is not an input of the network.
    CacheNotNetworkInput {
        /// Which layer.
        layer: usize,
    },
    /// The output is not marked as an output of the network.
    OutputNotMarked {
        /// Which layer.
        layer: usize,
    },
    /// Two layers write one cache.
    CacheSharedByLayers {
        /// The second of them.
        layer: usize,
        /// The first.
        first: usize,
    },
    /// An input of the layer is the output of another.
    FedByLayer {
        /// Which layer.
        layer: usize,
        /// The layer it is fed from.
        from: usize,
        /// The input.
        argument: Argument,
    },
    /// An input of the layer is a cache, which is written while it would be read. A rule of ours: what TensorRT
    /// makes of it is not known.
    CacheReadByLayer {
        /// Which layer.
        layer: usize,
        /// The layer whose cache it is.
        cache_of: usize,
        /// The input.
        argument: Argument,
    },
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
