//! kvscatter's cache write for [candle](https://docs.rs/candle-core): new keys and values go to each sample's own
//! position, in place, and no other byte moves.
//!
//! | what | is |
//! |---|---|
//! | [`TensorScatter`] | ONNX's operator as candle's `InplaceOp3`, on `(cache, update, write_indices)` |
//! | [`Writer`], [`write_many`] | the same, prepared once and run every step, for one cache or for keys and values, all or none |
//! | `cuda::CudaWriter` | the same for tensors on CUDA devices, without waiting for them, with the feature `cuda`; the repository's `docs/candle-cuda.md` describes it |
//! | [`kv_cache`] | `KvCache`, `RotatingKvCache` and `ScatteredKvCache` of candle-nn, with its methods and without its faults |
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kvscatter_candle::kv_cache::KvCache;
//!
//! let mut cache = KvCache::new(2, 512);
//! let prompt = Tensor::ones((1, 8, 5, 64), DType::F16, &Device::Cpu)?;
//! cache.append(&prompt, &prompt)?;
//! let token = Tensor::ones((1, 8, 1, 64), DType::F16, &Device::Cpu)?;
//! let (keys, _values) = cache.append(&token, &token)?;
//! assert_eq!(keys.dims(), [1, 8, 6, 64]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! Updates may be strided, as a projection leaves them after a `transpose`; caches too. Every element type of candle
//! that ONNX's operator has is moved bit for bit: all but the 6-bit floats. What is checked, and in which order, is
//! the [core's](kvscatter). Writes run on the calling thread.
//!
//! # Limits
//!
//! Tensors lie in the CPU's memory, but for those of `cuda::CudaWriter`: other devices are refused. Writing in place has no
//! gradient, as in candle itself. A tensor that shares a cache's storage, such as one that an `append` has returned, shows
//! later writes.
#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]
#![deny(unsafe_code)]

#[cfg(feature = "cuda")]
pub mod cuda;
mod element;
mod error;
mod indices;
pub mod kv_cache;
mod scatter;
mod writer;

pub use error::CandleError;
pub use indices::positions_from_tensor;
pub use scatter::TensorScatter;
pub use writer::{CacheWrite, WriteAt, Writer, write_many};

/// The page's examples are tested with the crate's.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/candle.md")]
struct Page;

/// As above.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../../docs/candle-cuda.md")]
struct CudaPage;
