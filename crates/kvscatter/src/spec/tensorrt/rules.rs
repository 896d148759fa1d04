//! Checks the rules of TensorRT's builder about the layers of a network, before any shape is certain.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::KvCacheUpdate;
use super::infer::{PartialInputs, cache_errors};
use super::network::{KvCacheUpdateLayer, NetworkError, NetworkTensor, TensorSource};
use crate::argument::Argument;
use crate::spec::Dimension;

/// The `KVCacheUpdate` layers of a network, in the order in which they were added.
///
/// ```
/// use kvscatter::ElementType;
/// use kvscatter::spec::{Dimension, PartialTensor};
/// use kvscatter::spec::tensorrt::{KvCacheUpdateLayer, Network, NetworkTensor, TensorSource};
///
/// let dims = |sequence| [Dimension::Known(2), Dimension::Known(8), sequence, Dimension::Known(128)];
/// let (cache, update) = (dims(Dimension::Known(4096)), dims(Dimension::Symbolic("sequence")));
/// let input = |name, element, shape| NetworkTensor {
///     name,
///     source: TensorSource::NetworkInput,
///     inferred: PartialTensor { element: Some(element), shape: Some(shape) },
/// };
/// let mut network = Network::default();
/// network.layers.push(KvCacheUpdateLayer {
///     cache: input("cache", ElementType::Float16, &cache),
///     update: input("update", ElementType::Float16, &update),
///     write_indices: input("write_indices", ElementType::Int32, &[Dimension::Known(2)]),
///     output_is_marked: true,
///     ..KvCacheUpdateLayer::default()
/// });
/// assert_eq!(network.check().flatten().next(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Network<'a> {
    /// The layers, in the order in which they were added.
    pub layers: Vec<KvCacheUpdateLayer<'a>>,
}

impl Network<'_> {
    /// Returns the broken rules of each layer, in the order of the layers.
    pub fn check(&self) -> impl Iterator<Item = Vec<NetworkError>> {
        let mut writers = BTreeMap::new();
        let layers = self.layers.iter().enumerate();
        for (layer, definition) in layers.clone().filter(|(_, layer)| !layer.cache.name.is_empty()) {
            writers.entry(definition.cache.name).or_insert(layer);
        }
        layers.map(move |(layer, definition)| check(layer, definition, &writers))
    }
}

/// Returns every rule that a layer breaks.
///
/// The rules about the cache come first. The rules about the sources of the tensors and the destination of
/// the output follow, and then the rules about the types and shapes of the other tensors. `writers` contains
/// the first layer that writes each cache.
fn check(
    layer: usize,
    definition: &KvCacheUpdateLayer<'_>,
    writers: &BTreeMap<&str, usize>,
) -> Vec<NetworkError> {
    let KvCacheUpdateLayer { form, cache, update, write_indices, update_lengths, .. } = *definition;
    let of_layer = |error| NetworkError::Layer { layer, error };
    let mut broken: Vec<_> = cache_errors(cache.inferred).map(of_layer).collect();
    broken.extend(check_cache(layer, &cache, writers));
    broken.extend(check_sources(layer, definition, writers));
    if !definition.output_is_marked {
        broken.push(NetworkError::OutputNotMarked { layer });
    }
    let inputs = PartialInputs {
        form,
        cache: cache.inferred,
        update: update.inferred,
        write_indices: write_indices.inferred,
        update_lengths: update_lengths.map(|lengths| lengths.inferred),
    };
    broken.extend(KvCacheUpdate::new().input_errors(inputs).map(of_layer));
    broken
}

fn check_cache(
    layer: usize,
    cache: &NetworkTensor<'_>,
    writers: &BTreeMap<&str, usize>,
) -> Vec<NetworkError> {
    let mut broken = Vec::new();
    if let Some([_, _, Dimension::Symbolic(_) | Dimension::Unknown, _]) = cache.inferred.shape {
        broken.push(NetworkError::DynamicMaxSequenceLength { layer });
    }
    if cache.source != TensorSource::NetworkInput {
        broken.push(NetworkError::CacheNotNetworkInput { layer });
    }
    if let Some(&first) = writers.get(cache.name).filter(|&&first| first < layer) {
        broken.push(NetworkError::CacheSharedByLayers { layer, first });
    }
    broken
}

fn check_sources(
    layer: usize,
    definition: &KvCacheUpdateLayer<'_>,
    writers: &BTreeMap<&str, usize>,
) -> impl Iterator<Item = NetworkError> {
    let inputs = [
        (Argument::Cache, Some(definition.cache)),
        (Argument::Update, Some(definition.update)),
        (Argument::TensorRtWriteIndices, Some(definition.write_indices)),
        (Argument::UpdateLengths, definition.update_lengths),
    ];
    inputs.into_iter().filter_map(move |(argument, tensor)| {
        let tensor = tensor?;
        if let TensorSource::KvCacheUpdateLayer(from) = tensor.source {
            return Some(NetworkError::FedByLayer { layer, from, argument });
        }
        let cache_of = writers.get(tensor.name).filter(|_| argument != Argument::Cache);
        cache_of.map(|&cache_of| NetworkError::CacheReadByLayer { layer, cache_of, argument })
    })
}
