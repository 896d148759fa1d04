//! Positions that are given as a tensor.

use candle_core::{CpuStorage, DType, Layout, Storage, Tensor};
use kvscatter::{Argument, Integers, Positions};

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

/// Positions that are borrowed from memory, or copied from a list with gaps.
pub(crate) enum Indices<'a> {
    Borrowed(Integers<'a>),
    Gathered(Vec<i64>),
}

impl<'a> Indices<'a> {
    pub(crate) fn read(storage: &'a CpuStorage, layout: &Layout) -> Result<Self, CandleError> {
        check_rank(layout)?;
        let Some((first, end)) = layout.contiguous_offsets() else {
            return gathered(storage, layout).map(Self::Gathered);
        };
        let integers = match storage {
            CpuStorage::I64(values) => values.get(first..end).unwrap_or_default().into(),
            CpuStorage::I32(values) => values.get(first..end).unwrap_or_default().into(),
            CpuStorage::U32(values) => values.get(first..end).unwrap_or_default().into(),
            _ => return Err(CandleError::IndexType { dtype: dtype_of(storage) }),
        };
        Ok(Self::Borrowed(integers))
    }

    pub(crate) fn starts(&self) -> Positions<'_> {
        match self {
            Self::Borrowed(integers) => Positions::Each(*integers),
            Self::Gathered(values) => values.into(),
        }
    }
}

fn check_rank(layout: &Layout) -> Result<(), CandleError> {
    let rank = layout.dims().len();
    if rank == 1 { Ok(()) } else { Err(CandleError::IndexRank { rank }) }
}

fn gathered(storage: &CpuStorage, layout: &Layout) -> Result<Vec<i64>, CandleError> {
    check_rank(layout)?;
    match storage {
        CpuStorage::I64(values) => Ok(gather(values, layout)),
        CpuStorage::I32(values) => Ok(gather(values, layout)),
        CpuStorage::U32(values) => Ok(gather(values, layout)),
        _ => Err(CandleError::IndexType { dtype: dtype_of(storage) }),
    }
}

fn gather<T: Copy + Into<i64>>(values: &[T], layout: &Layout) -> Vec<i64> {
    let step = layout.stride().first().copied().unwrap_or(1);
    let count = layout.dims().first().copied().unwrap_or(0);
    let places = (0..count).map(|sample| layout.start_offset() + sample * step);
    places.filter_map(|place| values.get(place)).map(|&value| value.into()).collect()
}

fn dtype_of(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}
