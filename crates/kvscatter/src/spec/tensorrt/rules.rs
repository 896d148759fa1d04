//! The rules of TensorRT's builder about the layers of a network, before any shape is certain.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::network::{AttentionIoForm, KvCacheUpdateLayer, NetworkError, NetworkTensor, TensorSource};
use super::{KvCacheUpdate, check_element};
use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::Error;
use crate::spec::{Dimension, fill_unknown};

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
    /// The layers.
    pub layers: Vec<KvCacheUpdateLayer<'a>>,
}

impl Network<'_> {
    /// Returns the rules that each layer breaks, layer by layer.
    pub fn check(&self) -> impl Iterator<Item = Vec<NetworkError>> {
        let mut writers = BTreeMap::new();
        let layers = self.layers.iter().enumerate();
        for (layer, definition) in layers.clone().filter(|(_, layer)| !layer.cache.name.is_empty()) {
            writers.entry(definition.cache.name).or_insert(layer);
        }
        layers.map(move |(layer, definition)| check(layer, definition, &writers))
    }
}

/// Returns every rule that a layer breaks: those about its cache, then those about where its tensors come from and
/// go to, then those about the types and shapes of its other tensors.
///
/// `writers` has the first layer that writes each cache.
fn check(
    layer: usize,
    definition: &KvCacheUpdateLayer<'_>,
    writers: &BTreeMap<&str, usize>,
) -> Vec<NetworkError> {
    let mut broken = check_cache(layer, &definition.cache, writers);
    broken.extend(check_sources(layer, definition, writers));
    broken.extend(match (definition.form, definition.update_lengths) {
        (AttentionIoForm::PackedNhd, None) => Some(NetworkError::PackedWithoutLengths { layer }),
        (AttentionIoForm::PaddedBhnd, Some(_)) => Some(NetworkError::LengthsWhilePadded { layer }),
        _ => None,
    });
    if !definition.output_is_marked {
        broken.push(NetworkError::OutputNotMarked { layer });
    }
    let checks = [
        check_types(definition),
        check_shapes(definition),
        check_indices(definition),
        check_lengths(definition),
    ];
    let errors = checks.into_iter().filter_map(Result::err);
    broken.extend(errors.map(|error| NetworkError::Layer { layer, error }));
    broken
}

fn check_cache(
    layer: usize,
    cache: &NetworkTensor<'_>,
    writers: &BTreeMap<&str, usize>,
) -> Vec<NetworkError> {
    let mut broken = Vec::new();
    let of_layer = |error| NetworkError::Layer { layer, error };
    let argument = Argument::Cache;
    if let Some(Err(error)) = cache.inferred.element.map(|element| check_element(argument, element)) {
        broken.push(of_layer(error));
    }
    match cache.inferred.shape {
        None | Some([_, _, Dimension::Known(_), _]) => {}
        Some([_, _, _, _]) => broken.push(NetworkError::DynamicMaxSequenceLength { layer }),
        Some(shape) => broken.push(of_layer(Error::Rank { argument, rank: shape.len(), expected: &[4] })),
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

fn check_types(definition: &KvCacheUpdateLayer<'_>) -> Result<(), Error> {
    let argument = Argument::Update;
    let Some(element) = definition.update.inferred.element else { return Ok(()) };
    check_element(argument, element)?;
    match definition.cache.inferred.element {
        Some(cache) if cache != element && check_element(Argument::Cache, cache).is_ok() => {
            Err(Error::ElementTypeMismatch { cache, argument, element })
        }
        _ => Ok(()),
    }
}

/// Prepares the layer, with each unknown size chosen to fit. If that fails, every execution of the layer would fail too.
fn check_shapes(definition: &KvCacheUpdateLayer<'_>) -> Result<(), Error> {
    let (cache, update) = (definition.cache.inferred, definition.update.inferred);
    let (Some(mut cache_sizes), Some(update_sizes)) = (cache.sizes(), update.sizes()) else { return Ok(()) };
    let [batch, _, Some(_), _] = cache_sizes.as_mut_slice() else { return Ok(()) };
    let takes = |element: &ElementType| KvCacheUpdate::ELEMENT_TYPES.contains(element);
    let known = [cache.element, update.element].into_iter().flatten().find(takes);
    let element = known.unwrap_or(ElementType::Float16);
    match definition.form {
        AttentionIoForm::PaddedBhnd => {
            let pairs = [(0, 0), (1, 1), (2, 2), (3, 3)];
            let (cache, update) = fill_unknown(cache_sizes, update_sizes, &pairs);
            KvCacheUpdate::new().prepare(element, &cache, &update)?;
        }
        AttentionIoForm::PackedNhd => {
            // A packed update has no batch: it has as many samples as there are indices.
            let samples = definition.write_indices.inferred.size(0);
            if let (Some(cache), Some(update)) = (*batch, samples)
                && update > cache
            {
                return Err(Error::BatchTooLarge { argument: Argument::Update, cache, update });
            }
            *batch = batch.or(samples);
            let (cache, update) = fill_unknown(cache_sizes, update_sizes, &[(1, 1), (3, 2)]);
            KvCacheUpdate::new().prepare_packed(element, &cache, &update)?;
        }
    }
    Ok(())
}

fn check_indices(definition: &KvCacheUpdateLayer<'_>) -> Result<(), Error> {
    let batch = match definition.form {
        AttentionIoForm::PaddedBhnd => definition.update.inferred.size(0),
        AttentionIoForm::PackedNhd => None,
    };
    let types = &[ElementType::Int32, ElementType::Int64];
    definition.write_indices.inferred.check_indices(Argument::TensorRtWriteIndices, types, batch)
}

fn check_lengths(definition: &KvCacheUpdateLayer<'_>) -> Result<(), Error> {
    let Some(lengths) = definition.update_lengths else { return Ok(()) };
    let expected = definition.write_indices.inferred.size(0).and_then(|samples| samples.checked_add(1));
    lengths.inferred.check_indices(Argument::UpdateLengths, &[ElementType::Int32], expected)
}
