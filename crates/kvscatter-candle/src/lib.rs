//! kvscatter's cache write for [candle](https://docs.rs/candle-core). It writes new keys and values in place,
//! each sample at its own position. No other byte moves.
//!
//! | item | purpose |
//! |---|---|
//! | [`TensorScatter`] | ONNX's operator as candle's `InplaceOp3`, on `(cache, update, write_indices)` |
//! | [`Writer`] | the same operator, prepared once and run in every step |
//! | [`write_many`] | the write of several caches, such as keys and values, all or none |
//! | `cuda::CudaWriter` | the write on CUDA devices, without waiting for them, with the feature `cuda`. The repository's `docs/candle-cuda.md` describes it |
//! | [`kv_cache`] | candle-nn's `KvCache`, `RotatingKvCache` and `ScatteredKvCache` with the same methods, without their faults |
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
//! Updates and caches may be strided, for example after a `transpose` of a projection. Elements are moved bit
//! for bit. candle's 6-bit floats are the only types that are not supported, because ONNX's operator does not
//! have them. The [core](kvscatter) defines the checks and their order. Writes run on the calling thread.
//!
//! # Limits
//!
//! - Tensors must be in the CPU's memory, except those of `cuda::CudaWriter`. Other devices are not
//!   supported.
//! - A write in place has no gradient, as in candle itself.
//! - A tensor that shares a cache's storage, such as one that `append` has returned, changes with later
//!   writes.
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

/// The examples of this page are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/candle.md")]
struct Page;

/// The examples of this page are tested with those of the crate.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../../docs/candle-cuda.md")]
struct CudaPage;
