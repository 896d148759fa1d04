//! Positions that are given as a tensor.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout, Storage, Tensor};
use kvscatter::Argument;

use crate::CandleError;

/// Returns the positions in a tensor of one dimension, of `i64`, `i32` or `u32`. A [`Writer`](crate::Writer)
/// takes them as a slice.
///
/// # Errors
/// Returns [`CandleError::IndexType`], [`CandleError::IndexRank`] or [`CandleError::Device`] for any other
/// tensor.
pub fn positions_from_tensor(write_indices: &Tensor) -> Result<Vec<i64>, CandleError> {
    let (storage, layout) = write_indices.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => gathered(storage, layout),
        _ => Err(CandleError::Device {
            argument: Argument::WriteIndices,
            device: write_indices.device().location(),
        }),
    }
}

pub(crate) fn gathered(storage: &CpuStorage, layout: &Layout) -> Result<Vec<i64>, CandleError> {
    let rank = layout.dims().len();
    if rank != 1 {
        return Err(CandleError::IndexRank { rank });
    }
    match storage {
        CpuStorage::I64(values) => Ok(gather(values, layout)),
        CpuStorage::I32(values) => Ok(gather(values, layout)),
        CpuStorage::U32(values) => Ok(gather(values, layout)),
        _ => Err(CandleError::IndexType { dtype: storage.dtype() }),
    }
}

fn gather<T: Copy + Into<i64>>(values: &[T], layout: &Layout) -> Vec<i64> {
    let step = layout.stride().first().copied().unwrap_or(1);
    let count = layout.dims().first().copied().unwrap_or(0);
    let places = (0..count).map(|sample| layout.start_offset() + sample * step);
    places.filter_map(|place| values.get(place)).map(|&value| value.into()).collect()
}
