//! Positions that come as a tensor.

use candle_core::{CpuStorage, DType, Layout, Storage, Tensor};
use kvscatter::{Argument, Starts};

use crate::Error;

/// The positions in a tensor of one dimension, of `i64`, `i32` or `u32`: for a [`Writer`](crate::Writer), which takes
/// slices.
///
/// # Errors
/// [`Error::IndexType`], [`Error::IndexRank`], [`Error::Device`].
pub fn positions(write_indices: &Tensor) -> Result<Vec<i64>, Error> {
    let (storage, layout) = write_indices.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(match Indices::of(storage, layout)? {
            Indices::I64(values) => values.to_vec(),
            Indices::I32(values) => values.iter().map(|&value| value.into()).collect(),
            Indices::Gathered(values) => values,
        }),
        _ => {
            Err(Error::Device { argument: Argument::WriteIndices, device: write_indices.device().location() })
        }
    }
}

/// As they lie in memory, or put together.
pub(crate) enum Indices<'a> {
    I64(&'a [i64]),
    I32(&'a [i32]),
    Gathered(Vec<i64>),
}

impl<'a> Indices<'a> {
    pub(crate) fn of(storage: &'a CpuStorage, layout: &Layout) -> Result<Self, Error> {
        let rank = layout.dims().len();
        if rank != 1 {
            return Err(Error::IndexRank { rank });
        }
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::I64(values), Some((first, end))) => {
                Ok(Self::I64(values.get(first..end).unwrap_or_default()))
            }
            (CpuStorage::I32(values), Some((first, end))) => {
                Ok(Self::I32(values.get(first..end).unwrap_or_default()))
            }
            (CpuStorage::I64(values), None) => Ok(Self::gather(values, layout)),
            (CpuStorage::I32(values), None) => Ok(Self::gather(values, layout)),
            (CpuStorage::U32(values), _) => Ok(Self::gather(values, layout)),
            _ => Err(Error::IndexType { dtype: dtype_of(storage) }),
        }
    }

    fn gather<T: Copy + Into<i64>>(values: &[T], layout: &Layout) -> Self {
        let step = layout.stride().first().copied().unwrap_or(1);
        let count = layout.dims().first().copied().unwrap_or(0);
        let places = (0..count).map(|sample| layout.start_offset() + sample * step);
        Self::Gathered(places.filter_map(|place| values.get(place)).map(|&value| value.into()).collect())
    }

    pub(crate) fn starts(&self) -> Starts<'_> {
        match self {
            Self::I64(values) => Starts::I64(values),
            Self::I32(values) => Starts::I32(values),
            Self::Gathered(values) => Starts::I64(values),
        }
    }
}

fn dtype_of(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}
