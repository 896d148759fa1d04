//! What TensorRT's builder asks of a network, before any shape is certain. Rules about actual shapes are those
//! of [`KvCacheUpdate`](super::KvCacheUpdate) and are checked there, when an engine is executed.

use super::network::{AttentionIoForm, LayerDefinition, Network, NetworkError, Source, Tensor, TensorId};
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
        if let Some(Source::Layer(from)) = tensor.map(|id| network.tensor(id)).transpose()?.map(|t| t.source)
        {
            return Err(NetworkError::FedByLayer { layer, from, argument });
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
fn check_tensors(network: &Network, layer: usize, definition: &LayerDefinition) -> Result<(), NetworkError> {
    use ElementType::{BFloat16, Float16, Float32, Int32, Int64};
    let refuse = |error| NetworkError::Layer { layer, error };
    let tensor = |id: TensorId| network.tensor(id);
    let (cache, update) = (tensor(definition.cache)?, tensor(definition.update)?);
    let indices = tensor(definition.write_indices)?;
    let lengths = definition.update_lengths.map(tensor).transpose()?;

    for (argument, tensor) in [(Argument::Cache, cache), (Argument::Update, update)] {
        one_of(argument, tensor, &[Float32, Float16, BFloat16]).map_err(refuse)?;
    }
    if cache.data_type != update.data_type {
        let element = update.data_type.element();
        let cache = cache.data_type.element();
        return Err(refuse(Error::ElementTypeMismatch { cache, argument: Argument::Update, element }));
    }
    one_of(Argument::TensorRtWriteIndices, indices, &[Int32, Int64]).map_err(refuse)?;
    if let Some(lengths) = lengths {
        one_of(Argument::UpdateLengths, lengths, &[Int32]).map_err(refuse)?;
        rank(Argument::UpdateLengths, lengths, 1).map_err(refuse)?;
    }
    rank(Argument::TensorRtWriteIndices, indices, 1).map_err(refuse)?;
    rank(Argument::Cache, cache, 4).map_err(refuse)?;
    let &[batch, heads, capacity, head_size] = cache.dims.as_slice() else {
        return Ok(());
    };
    let Some(capacity) = capacity else {
        return Err(NetworkError::DynamicMaxSequenceLength { layer });
    };
    match (definition.form, update.dims.as_slice()) {
        (AttentionIoForm::PaddedBhnd, &[new_batch, new_heads, rows, new_head_size]) => {
            agree(1, heads, new_heads).and_then(|()| agree(3, head_size, new_head_size)).map_err(refuse)?;
            if let Some(rows) = rows.filter(|&rows| rows > capacity) {
                return Err(refuse(Error::UpdateLongerThanCache { rows, capacity }));
            }
            if let (Some(cache), Some(update)) = (batch, new_batch)
                && update > cache
            {
                return Err(refuse(Error::BatchTooLarge { cache, update }));
            }
            count(Argument::TensorRtWriteIndices, indices, new_batch).map_err(refuse)
        }
        (AttentionIoForm::PackedNhd, &[_, new_heads, new_head_size]) => {
            agree(1, heads, new_heads).and_then(|()| agree(2, head_size, new_head_size)).map_err(refuse)?;
            let samples = indices.dims.first().copied().flatten();
            if let (Some(cache), Some(update)) = (batch, samples)
                && update > cache
            {
                return Err(refuse(Error::BatchTooLarge { cache, update }));
            }
            let want = samples.and_then(|samples| samples.checked_add(1));
            lengths.map_or(Ok(()), |lengths| count(Argument::UpdateLengths, lengths, want)).map_err(refuse)
        }
        (AttentionIoForm::PaddedBhnd, _) => rank(Argument::Update, update, 4).map_err(refuse),
        (AttentionIoForm::PackedNhd, _) => rank(Argument::Update, update, 3).map_err(refuse),
    }
}

fn one_of(argument: Argument, tensor: &Tensor, allowed: &[ElementType]) -> Result<(), Error> {
    let element = tensor.data_type.element();
    if allowed.contains(&element) { Ok(()) } else { Err(Error::ElementType { argument, element }) }
}

fn rank(argument: Argument, tensor: &Tensor, want: usize) -> Result<(), Error> {
    let rank = tensor.dims.len();
    if rank == want { Ok(()) } else { Err(Error::Rank { argument, rank, min: want, max: want }) }
}

fn agree(dimension: usize, cache: Option<usize>, update: Option<usize>) -> Result<(), Error> {
    match (cache, update) {
        (Some(expected), Some(got)) if expected != got => {
            Err(Error::DimensionMismatch { argument: Argument::Update, dimension, expected, got })
        }
        _ => Ok(()),
    }
}

fn count(argument: Argument, tensor: &Tensor, want: Option<usize>) -> Result<(), Error> {
    match (tensor.dims.as_slice(), want) {
        (&[Some(got)], Some(want)) if got != want => Err(Error::Count { argument, got, want }),
        _ => Ok(()),
    }
}
