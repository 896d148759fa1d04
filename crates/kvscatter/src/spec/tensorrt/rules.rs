//! What TensorRT's builder asks of a network, before any shape is certain.

use alloc::vec::Vec;

use super::network::{AttentionIoForm, LayerDefinition, Network, NetworkError, Source, Tensor, TensorId};
use super::{KvCacheUpdate, check_element};
use crate::{Argument, ElementType, Error};

pub(super) fn check(network: &Network) -> Result<(), NetworkError> {
    for (layer, definition) in network.layers.iter().enumerate() {
        check_wiring(network, layer, definition)?;
        check_tensors(network, layer, definition)?;
    }
    Ok(())
}

/// Where the tensors come from and go to.
fn check_wiring(network: &Network, layer: usize, definition: &LayerDefinition) -> Result<(), NetworkError> {
    let LayerDefinition { cache, update, write_indices, update_lengths, form, output } = *definition;
    if network.tensor(cache)?.source != Source::Input {
        return Err(NetworkError::CacheNotNetworkInput { layer });
    }
    let first = network.layers.iter().position(|other| other.cache == cache);
    if let Some(first) = first.filter(|&first| first < layer) {
        return Err(NetworkError::CacheSharedByLayers { layer, first });
    }
    let fed = [
        (Argument::Update, Some(update)),
        (Argument::TensorRtWriteIndices, Some(write_indices)),
        (Argument::UpdateLengths, update_lengths),
    ];
    for (argument, tensor) in fed {
        let Some(id) = tensor else { continue };
        if let Source::Layer(from) = network.tensor(id)?.source {
            return Err(NetworkError::FedByLayer { layer, from, argument });
        }
        if let Some(cache_of) = network.layers.iter().position(|other| other.cache == id) {
            return Err(NetworkError::CacheReadByLayer { layer, cache_of, argument });
        }
    }
    match (form, update_lengths) {
        (AttentionIoForm::PackedNhd, None) => return Err(NetworkError::PackedWithoutLengths { layer }),
        (AttentionIoForm::PaddedBhnd, Some(_)) => return Err(NetworkError::LengthsWhilePadded { layer }),
        _ => {}
    }
    if network.tensor(output)?.marked { Ok(()) } else { Err(NetworkError::OutputNotMarked { layer }) }
}

/// Types, ranks, and every dimension that is known.
///
/// What the shapes must be is asked of `prepare`, with every unknown dimension set to what fits best: it then
/// refuses what no execution could make right.
fn check_tensors(network: &Network, layer: usize, definition: &LayerDefinition) -> Result<(), NetworkError> {
    let refuse = |error| NetworkError::Layer { layer, error };
    let tensor = |id: TensorId| network.tensor(id);
    let (cache, update) = (tensor(definition.cache)?, tensor(definition.update)?);
    let (element, update_element) = (cache.data_type.element(), update.data_type.element());
    check_element(Argument::Cache, element).map_err(refuse)?;
    check_element(Argument::Update, update_element).map_err(refuse)?;
    if element != update_element {
        let (argument, cache, element) = (Argument::Update, element, update_element);
        return Err(refuse(Error::ElementTypeMismatch { cache, argument, element }));
    }
    let indices = tensor(definition.write_indices)?;
    let index_types = &[ElementType::Int32, ElementType::Int64];
    let samples = check_indices(Argument::TensorRtWriteIndices, indices, index_types).map_err(refuse)?;
    if let &[_, _, None, _] = cache.dims.as_slice() {
        return Err(NetworkError::DynamicMaxSequenceLength { layer });
    }
    let place = |dims: &[Option<usize>], at: usize| dims.get(at).copied().flatten();
    match definition.update_lengths.map(tensor).transpose()? {
        None => {
            let batch = place(&update.dims, 0);
            let old = fill(&cache.dims, |at| place(&update.dims, at).unwrap_or(1));
            let new =
                fill(&update.dims, |at| if at % 2 == 0 { 0 } else { place(&cache.dims, at).unwrap_or(1) });
            KvCacheUpdate::new().prepare(element, &old, &new).map_err(refuse)?;
            check_count(Argument::TensorRtWriteIndices, samples, batch).map_err(refuse)
        }
        Some(lengths) => {
            // [tokens, heads, head size] beside [batch, heads, sequence, head size]
            let old = fill(&cache.dims, |at| match at {
                0 => samples.unwrap_or(0),
                1 => place(&update.dims, 1).unwrap_or(1),
                _ => place(&update.dims, 2).unwrap_or(1),
            });
            let new = fill(&update.dims, |at| match at {
                0 => 0,
                1 => place(&cache.dims, 1).unwrap_or(1),
                _ => place(&cache.dims, 3).unwrap_or(1),
            });
            KvCacheUpdate::new().prepare_packed(element, &old, &new).map_err(refuse)?;
            if let (Some(cache), Some(update)) = (place(&cache.dims, 0), samples)
                && update > cache
            {
                return Err(refuse(Error::BatchTooLarge { cache, update }));
            }
            let counts =
                check_indices(Argument::UpdateLengths, lengths, &[ElementType::Int32]).map_err(refuse)?;
            let want = samples.and_then(|samples| samples.checked_add(1));
            check_count(Argument::UpdateLengths, counts, want).map_err(refuse)
        }
    }
}

/// The dimensions, unknown ones made up.
fn fill(dims: &[Option<usize>], make_up: impl Fn(usize) -> usize) -> Vec<usize> {
    dims.iter().enumerate().map(|(at, dim)| dim.unwrap_or_else(|| make_up(at))).collect()
}

/// How many values an index tensor has, if that is known.
fn check_indices(
    argument: Argument,
    tensor: &Tensor,
    allowed: &[ElementType],
) -> Result<Option<usize>, Error> {
    let element = tensor.data_type.element();
    if !allowed.contains(&element) {
        return Err(Error::ElementType { argument, element });
    }
    match *tensor.dims.as_slice() {
        [count] => Ok(count),
        _ => Err(Error::Rank { argument, rank: tensor.dims.len(), expected: &[1] }),
    }
}

fn check_count(argument: Argument, got: Option<usize>, want: Option<usize>) -> Result<(), Error> {
    match (got, want) {
        (Some(got), Some(want)) if got != want => Err(Error::Count { argument, got, want }),
        _ => Ok(()),
    }
}
