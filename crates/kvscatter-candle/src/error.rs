//! Why a write was refused.

use std::fmt;

use candle_core::{DType, DeviceLocation};
use kvscatter::Argument;

/// Why a write was refused. Nothing has been written when one is returned.
///
/// The drop-in caches return candle's own error, whose text is this one's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandleError {
    /// A rule of `TensorScatter`: shapes, strides, positions, an update that shares memory with the cache.
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    /// An element type that is not written: 6-bit floats are none of `TensorScatter`'s, and 4-bit floats are written on
    /// the CPU alone.
    #[error("{argument} is {}, which this write does not take", .dtype.as_str())]
    DType {
        /// Which tensor.
        argument: Argument,
        /// Its type.
        dtype: DType,
    },
    /// `write_indices` has a type that positions cannot have.
    #[error("write_indices is {}, must be i64, i32 or u32", .dtype.as_str())]
    IndexType {
        /// The type.
        dtype: DType,
    },
    /// `write_indices` is not a list.
    #[error("write_indices has {rank} dimensions, must have 1")]
    IndexRank {
        /// Its dimensions.
        rank: usize,
    },
    /// A tensor that is not in the CPU's memory, where this write is made.
    #[error(
        "{argument} is on {device:?}, must be on the CPU; CUDA devices have kvscatter_candle::cuda::CudaWriter, with the feature \"cuda\""
    )]
    Device {
        /// Which tensor.
        argument: Argument,
        /// Where it is.
        device: DeviceLocation,
    },
    /// A cache that is on no CUDA device.
    #[cfg(feature = "cuda")]
    #[error("past_cache is on {device:?}, must be on a CUDA device; the CPU has kvscatter_candle::Writer")]
    NoCuda {
        /// Where it is.
        device: DeviceLocation,
    },
    /// A tensor that is not where the caches are.
    #[cfg(feature = "cuda")]
    #[error("{argument} is on {device:?}, must be on {cache:?}, where the first cache is")]
    OtherDevice {
        /// Which tensor.
        argument: Argument,
        /// Where it is.
        device: DeviceLocation,
        /// Where the caches are.
        cache: DeviceLocation,
    },
    /// A tensor of another candle device on the same GPU, where nothing orders what the two do.
    #[cfg(feature = "cuda")]
    #[error(
        "{argument} was made by another candle device, whose stream and the first cache's do not wait for each other; make both with Device::new_cuda_with_stream, or all tensors on one device"
    )]
    OtherStream {
        /// Which tensor.
        argument: Argument,
    },
    /// A writer of no caches.
    #[cfg(feature = "cuda")]
    #[error("no caches: there must be at least 1")]
    NoCaches,
    /// Another number of updates than of caches.
    #[cfg(feature = "cuda")]
    #[error("{} for {}", Count(*got, "update"), Count(*expected, "cache"))]
    Updates {
        /// Updates given.
        got: usize,
        /// Caches there are.
        expected: usize,
    },
    /// Positions or lengths that a device does not read.
    #[cfg(feature = "cuda")]
    #[error("{argument} is {} of {}, must be a contiguous list of i64 or i32", .dtype.as_str(), Count(*rank, "dimension"))]
    DeviceList {
        /// Which list.
        argument: Argument,
        /// Its type.
        dtype: DType,
        /// Its dimensions.
        rank: usize,
    },
    /// An error of the driver, or one that the CPU does not have.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(kvscatter_cuda::CudaError),
    /// The sequence dimension lies outside the tensor.
    #[error("dim = {dim} is not a dimension of a tensor of rank {rank}")]
    Dim {
        /// The dimension given.
        dim: usize,
        /// The tensor's rank.
        rank: usize,
    },
    /// Rows outside the update.
    #[error("rows {first}..{end} of an update of {}", Count(*rows, "row"))]
    Rows {
        /// The first row asked for.
        first: usize,
        /// The row after the last.
        end: usize,
        /// Rows there are.
        rows: usize,
    },
    /// A cache without room for a single token.
    #[error("max_seq_len = 0: a cache must have room for at least 1 token")]
    NoRoom,
    /// The length of a cache cannot be computed or is more than it can hold.
    #[error("{} after {length}: more than a cache can count", Count(*tokens, "token"))]
    TooLong {
        /// Tokens appended.
        tokens: usize,
        /// Tokens before them.
        length: usize,
    },
    /// A cache can only become shorter.
    #[error("truncate to {}: the cache has {current}", Count(*length, "token"))]
    Longer {
        /// The length asked for.
        length: usize,
        /// The length it has.
        current: usize,
    },
    /// A ring that has wrapped has lost tokens that a shorter sequence would need.
    #[error(
        "truncate to {}: the ring of {} has wrapped at {current} and has lost the oldest tokens",
        Count(*length, "token"),
        Count(*capacity, "slot")
    )]
    RingWrapped {
        /// The length asked for.
        length: usize,
        /// The length it has.
        current: usize,
        /// Slots of the ring.
        capacity: usize,
    },
    /// A list with the wrong number of entries.
    #[error("{list} has {}, must have {expected}, one per sample", Count(*got, "entry"))]
    Entries {
        /// Which list.
        list: &'static str,
        /// Entries given.
        got: usize,
        /// Entries expected.
        expected: usize,
    },
    /// The update is not as long as the positions that were computed for it.
    #[error("update has {}, indices_and_mask was called for {expected}", Count(*got, "row"))]
    SequenceLength {
        /// Rows of the update.
        got: usize,
        /// Rows that the positions are for.
        expected: usize,
    },
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A number with its noun: `1 cache`, `2 caches`.
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
