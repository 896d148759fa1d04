//! Writes new keys and values into a KV cache, in place, exactly as ONNX, TensorRT and Ascend define it.
//!
//! A write changes only the bytes of the updated rows.
//!
//! ```
//! use kvscatter::{ElementType, spec::onnx::TensorScatter};
//!
//! // Once per shape. Here: 2 samples, 1 head, 4 slots, head size 2, and one new row per sample.
//! let scatter = TensorScatter::new().prepare(ElementType::Float32, &[2, 1, 4, 2], &[2, 1, 1, 2])?;
//!
//! // At every step, each sample is written at its own position.
//! let (mut k, mut v) = ([0.0_f32; 16], [0.0_f32; 16]);
//! let write_indices = [3_i64, 1];
//! let plan = scatter.plan(&write_indices)?; // checks every index before any byte moves
//! let (new_k, new_v) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
//! let written = plan.write_many(&mut [(&mut k, &new_k), (&mut v, &new_v)])?; // writes keys and values
//! assert_eq!(written.skipped, 0);
//! assert_eq!(k, [0., 0., 0., 0., 0., 0., 1., 2., 0., 0., 3., 4., 0., 0., 0., 0.]);
//! # Ok::<(), kvscatter::Error>(())
//! ```
//!
//! # Operators
//!
//! | specification | here | shapes | positions |
//! |---|---|---|---|
//! | ONNX `TensorScatter-24` | [`spec::onnx::TensorScatter`] | any rank, any axis, linear or circular | `write_indices`: first slot |
//! | TensorRT `KVCacheUpdate` | [`spec::tensorrt::KvCacheUpdate`] | `[b, d, s, h]` or packed `[tokens, d, h]` | `writeIndices`: first slot |
//! | Ascend ATB `KVCacheOperation` | [`spec::ascend::KvCacheOperation`] | `[layer, batch, maxSeqLen, hidden]`, packed tokens | `tokenOffset`: length *after* the write |
//! | paged caches of engines | [`spec::paged::PagedWrite`] | `[num_blocks, block_size, …]`, tokens | `slot_mapping`: a slot for each token |
//!
//! Each module uses the terms of its specification and documents where that specification is wrong or
//! incomplete. [`spec::tensorrt::Network`] checks TensorRT's rules about whole networks. The module
//! [`positions`] explains the four conventions for positions and converts between them.
//! The module [`visibility`] has the rule for reading: which slots a query sees.
//!
//! # Prepare, plan, write
//!
//! 1. `prepare` checks the shapes, once per shape. It returns a handle that owns a [`Geometry`].
//! 2. `plan` checks the indices of one call and returns a [`WritePlan`]. It allocates nothing (for a paged cache,
//!    up to 128 runs of slots), and no byte is written before it succeeds.
//! 3. The plan moves the bytes:
//!    * [`write`](WritePlan::write) writes one cache in place.
//!    * [`write_many`](WritePlan::write_many) writes many caches in place, either all of them or none.
//!    * [`write_all`] does so for caches of different element types and rows, such as codes and scales.
//!    * [`write_present`](WritePlan::write_present) writes the result of ONNX's functional form.
//!    * [`for_each_block`](WritePlan::for_each_block) visits the blocks to copy, for your own backend.
//!
//! A backend that reads its positions on a device cannot make a plan. The module [`device`] gives such a
//! backend the loops, the rules and the errors.
//!
//! The crate copies elements by their width and never converts them. There are four kinds of methods:
//!
//! * Typed methods take slices of any type without padding, such as `f32`, `u16` and `bool`. They take
//!   `half::f16` if half's feature `bytemuck` is enabled.
//! * `*_bytes` methods take raw little-endian bytes. 4-bit elements are packed two to a byte, the first
//!   element in the low nibble.
//! * `*_cloned` methods clone whole values, such as strings.
//! * `*_raw` methods are unsafe and take addresses, for callers from other languages.
//!
//! The cache and the update may both be strided views. See [`Layout`].
//!
//! # Guarantees
//!
//! * **G1**: Every product of sizes fits `isize`, in elements and in bytes. [`Geometry`] checks this.
//! * **G2**: No two positions of a cache share a bit. [`Geometry`] checks this.
//! * **P1**: Every destination bit of every block lies inside the cache, and every source bit lies inside the
//!   update. [`WritePlan`] checks this.
//! * **P2**: The blocks of one plan are disjoint in the destination, so they may run in any order.
//!   [`WritePlan`] checks this.
//! * **P3**: No two threads write the same destination byte. If two 4-bit samples or rows share a byte, one
//!   thread writes both. Your own backend must ensure this itself.
//! * **X1**: If a call returns an error, no byte of any cache has changed. This includes calls over many
//!   buffers.
//! * **X2**: Bytes outside the plan never change. NaN payloads and padding move bit for bit.
//!
//! # Extensions
//!
//! These options are kvscatter extensions; they are not part of the specifications. Their defaults follow the
//! specifications.
//!
//! * `lengths` sets how many rows of each sample are written, so that padding never reaches the cache.
//! * [`OutOfRange::SkipSample`] skips a sample whose position does not fit, instead of returning an error.
//! * [`NegativeIndex`] sets what a negative index means in a ring.
//!
//! # Speed
//!
//! `prepare` chooses the kernels once per shape, for the length of a run and for the widest
//! [instruction set](Isa) of the machine. A call takes no lock, and allocates nothing except to compare more than
//! 128 runs of slots of a paged cache. Large writes can use
//! the caller's threads through an [`Executor`]. Without an executor, everything runs on the calling thread.
//!
//! # Features
//!
//! * `std` (default) detects the instruction sets when the program runs. Without `std`, the kernels use the
//!   instruction sets that the target is compiled for, and the crate needs only `alloc`.
//! * `picture` adds the `picture` module, which draws plans as text and as SVG.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(unsafe_code)]
#![doc(test(attr(deny(unused_must_use))))]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "sizes and indices come from untrusted callers, so every computation on them is checked or proved"
)]

extern crate alloc;

mod argument;
#[expect(unsafe_code, reason = "copies through pointers, which P1 proves to be in bounds")]
mod cpu;
pub mod device;
mod element;
pub mod error;
mod geometry;
#[cfg(feature = "picture")]
pub mod picture;
mod plan;
pub mod positions;
mod prepared;
pub mod quantize;
pub mod ring;
mod size;
pub mod spec;
pub mod visibility;
mod write;

pub use argument::Argument;
pub use bytemuck::NoUninit;
pub use cpu::{Executor, Isa};
pub use element::{DlpackType, ElementType, ParseElementTypeError};
pub use error::Error;
pub use geometry::{Block, Geometry, Layout, Loop};
pub use plan::{Call, Convention, Integers, Lengths, Mode, NegativeIndex, OutOfRange, Positions, Segment};
pub use prepared::Prepared;
pub use write::{BufferPairs, CacheMemory, PlannedWrite, RawBuffer, WritePlan, Written, write_all};

/// Tests the examples of this crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
