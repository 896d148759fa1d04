//! The errors that writes return.

use std::fmt;

use candle_core::{DType, DeviceLocation};
use kvscatter::Argument;

/// An error returned by a write, its preparation or its check. A write on the CPU that returns an error has
/// written nothing.
///
/// The drop-in caches return candle's own error with the text of this one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CandleError {
    /// The call breaks a rule of `TensorScatter` about shapes, strides, positions, or an update that shares
    /// memory with the cache.
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    /// The element type is not supported. `TensorScatter` does not have 6-bit floats, and only the CPU writes
    /// 4-bit floats.
    #[error("{argument} is {}, which this write does not support", .dtype.as_str())]
    DType { argument: Argument, dtype: DType },
    /// `write_indices` has a type that is not allowed for positions.
    #[error("write_indices is {}, must be i64, i32 or u32", .dtype.as_str())]
    IndexType { dtype: DType },
    /// `write_indices` does not have one dimension.
    #[error("write_indices has {rank} dimensions, must have 1")]
    IndexRank { rank: usize },
    /// A tensor of a write on the CPU is on another device.
    #[error(
        "{argument} is on {device:?}, must be on the CPU; for CUDA devices use kvscatter_candle::cuda::CudaWriter with the feature \"cuda\""
    )]
    Device { argument: Argument, device: DeviceLocation },
    /// A cache is not on a CUDA device.
    #[cfg(feature = "cuda")]
    #[error(
        "past_cache is on {device:?}, must be on a CUDA device; for the CPU use kvscatter_candle::Writer"
    )]
    NoCuda { device: DeviceLocation },
    /// A tensor is not on the device of the caches.
    #[cfg(feature = "cuda")]
    #[error("{argument} is on {device:?}, must be on {cache:?}, where the first cache is")]
    OtherDevice { argument: Argument, device: DeviceLocation, cache: DeviceLocation },
    /// A tensor belongs to another candle device on the same GPU, and nothing orders the work of the two
    /// devices.
    #[cfg(feature = "cuda")]
    #[error(
        "{argument} was made by another candle device, whose stream is not ordered with the stream of the first cache; make both devices with Device::new_cuda_with_stream, or all tensors on one device"
    )]
    OtherStream { argument: Argument },
    /// A writer has no caches.
    #[cfg(feature = "cuda")]
    #[error("no caches: there must be at least 1")]
    NoCaches,
    /// The number of updates is not the number of caches.
    #[cfg(feature = "cuda")]
    #[error("{} for {}", Count(*got, "update"), Count(*expected, "cache"))]
    Updates { got: usize, expected: usize },
    /// Positions or lengths on a device are not a contiguous list of `i64` or `i32`.
    #[cfg(feature = "cuda")]
    #[error("{argument} is {} of {}, must be a contiguous list of i64 or i32", .dtype.as_str(), Count(*rank, "dimension"))]
    DeviceList {
        /// The list, which is `write_indices` or `lengths`.
        argument: Argument,
        dtype: DType,
        rank: usize,
    },
    /// An error of the driver, or an error that does not exist on the CPU.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(kvscatter_cuda::CudaError),
    /// The sequence dimension is not a dimension of the tensor.
    #[error("dim = {dim} is not a dimension of a tensor of rank {rank}")]
    Dim { dim: usize, rank: usize },
    /// The selected rows are not in the update.
    #[error("rows {first}..{end} are not in an update of {}", Count(*rows, "row"))]
    Rows { first: usize, end: usize, rows: usize },
    /// A cache has no room for a single token.
    #[error("max_seq_len = 0: a cache must have room for at least 1 token")]
    NoRoom,
    /// The length of a cache is too large to compute or to store.
    #[error("{} after {length} exceed the largest length of a cache", Count(*tokens, "token"))]
    TooLong { tokens: usize, length: usize },
    /// A truncation would make a cache longer.
    #[error("truncate to {}: the cache has {current}", Count(*length, "token"))]
    Longer { length: usize, current: usize },
    /// A ring that has wrapped has lost tokens that a shorter sequence would need.
    #[error(
        "truncate to {}: the ring of {} has wrapped at {current} and has lost the oldest tokens",
        Count(*length, "token"),
        Count(*capacity, "slot")
    )]
    RingWrapped { length: usize, current: usize, capacity: usize },
    /// A ring would overwrite a row that one of the appended tokens needs.
    #[error(
        "{} after {length}: a ring of {} for a window of {window} takes at most {most} here; append a smaller chunk, or make the ring with RingSize::chunk({tokens})",
        Count(*tokens, "token"),
        Count(*capacity, "slot")
    )]
    RingStep { tokens: usize, length: usize, most: usize, capacity: usize, window: usize },
    /// A ring has lost rows of the window of a shorter sequence.
    #[error(
        "truncate to {}: a ring of {} for a window of {window} keeps at least {least} here, or none; make the ring with a larger RingSize::rewind",
        Count(*length, "token"),
        Count(*capacity, "slot")
    )]
    RingRewind { length: usize, least: usize, capacity: usize, window: usize },
    /// A list has the wrong number of entries.
    #[error("{list} has {}, must have {expected}, one per sample", Count(*got, "entry"))]
    Entries { list: &'static str, got: usize, expected: usize },
    /// The number of rows of the update differs from the number that the positions were computed for.
    #[error("update has {}, indices_and_mask was called for {expected}", Count(*got, "row"))]
    SequenceLength { got: usize, expected: usize },
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A number with its noun, such as `1 cache` or `2 caches`.
struct Count(usize, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(1, noun) => write!(f, "1 {noun}"),
            Self(number, "entry") => write!(f, "{number} entries"),
            Self(number, noun) => write!(f, "{number} {noun}s"),
        }
    }
}

#[cfg(feature = "cuda")]
impl From<kvscatter_cuda::CudaError> for CandleError {
    fn from(error: kvscatter_cuda::CudaError) -> Self {
        match error {
            kvscatter_cuda::CudaError::Write(error) => Self::Write(error),
            error => Self::Cuda(error),
        }
    }
}

impl From<CandleError> for candle_core::Error {
    fn from(error: CandleError) -> Self {
        match error {
            CandleError::Candle(error) => error,
            error => Self::wrap(error),
        }
    }
}
