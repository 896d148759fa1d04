//! Writes new keys and values into a KV cache: in place, exactly as ONNX, TensorRT and Ascend define it, and
//! moving no byte but those of the update.
//!
//! ```
//! use kvscatter::{ElementType, spec::onnx::TensorScatter};
//!
//! // Once per shape: 2 samples, 1 head, 4 slots, head size 2; one new row per sample.
//! let scatter = TensorScatter::new().prepare(ElementType::Float32, &[2, 1, 4, 2], &[2, 1, 1, 2])?;
//!
//! // Every step: each sample at its own position.
//! let (mut k, mut v) = ([0.0_f32; 16], [0.0_f32; 16]);
//! let write_indices = [3_i64, 1];
//! let plan = scatter.plan(&write_indices)?; // every index is checked here, before a byte moves …
//! let (new_k, new_v) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
//! let written = plan.write_many(&mut [(&mut k, &new_k), (&mut v, &new_v)])?; // … and keys and values are written
//! assert_eq!(written.skipped, 0);
//! assert_eq!(k, [0., 0., 0., 0., 0., 0., 1., 2., 0., 0., 3., 4., 0., 0., 0., 0.]);
//! # Ok::<(), kvscatter::Error>(())
//! ```
//!
//! # The three operators
//!
//! | specification | here | shapes | positions |
//! |---|---|---|---|
//! | ONNX `TensorScatter-24` | [`spec::onnx::TensorScatter`] | any rank, any axis, linear or circular | `write_indices`: first slot |
//! | TensorRT `KVCacheUpdate` | [`spec::tensorrt::KvCacheUpdate`] | `[b, d, s, h]` or packed `[tokens, d, h]` | `writeIndices`: first slot |
//! | Ascend ATB `KVCacheOperation` | [`spec::ascend::KvCacheOperation`] | `[layer, batch, maxSeqLen, hidden]`, packed tokens | `tokenOffset`: length *after* the write |
//!
//! Each module uses the terms of its document, and notes where the document is wrong or incomplete. TensorRT's
//! rules about whole networks are in [`spec::tensorrt::Network`]. [`positions`] explains the four conventions for
//! positions and converts between them.
//!
//! # Prepare, plan, write
//!
//! 1. `prepare` checks everything about shapes, once, and gives a handle that owns a [`Geometry`].
//! 2. `plan` checks one call's indices and gives a [`WritePlan`]. Until it succeeds nothing is written, and it
//!    allocates nothing.
//! 3. The plan moves bytes: [`write`](WritePlan::write) in place, [`write_many`](WritePlan::write_many) over
//!    many caches, all or none, [`write_present`](WritePlan::write_present) in ONNX's functional form. Or it
//!    hands out its [blocks](WritePlan::for_each_block), for a backend of your own.
//!
//! A backend that reads its positions itself, on a device, has no plan. The module [`device`] gives it the
//! loops, the rules and the errors.
//!
//! Data moves by width. Typed slices of anything without padding will do (`f32`, `u16`, `bool`, and
//! `half::f16` with half's feature `bytemuck`);
//! `*_bytes` methods take raw little-endian bytes, with 4-bit types packed two to a byte, first element in the
//! low nibble; `*_cloned` methods move whole values, such as strings. Either side may be strided: see
//! [`Layout`].
//!
//! # Guarantees
//!
//! * **G1** every product of sizes, in elements and in bytes, fits `isize` ([`Geometry`]);
//! * **G2** no two positions of a cache share a bit ([`Geometry`]);
//! * **P1** every destination bit of every block lies inside the cache, every source bit inside the update
//!   ([`WritePlan`]);
//! * **P2** blocks of one plan are disjoint in the destination, so they may run in any order ([`WritePlan`]);
//! * **P3** no two threads write the same destination byte. Where two 4-bit samples or rows share a byte, one
//!   thread writes both. Your own backend must ensure this itself;
//! * **X1** after an error no byte of any cache has changed, over many buffers too;
//! * **X2** bytes outside the plan never change; NaN payloads and padding move bit for bit.
//!
//! # Extensions
//!
//! These go beyond the specifications, and their documentation says so: `lengths` (how many rows of each sample are
//! written, so that padding never reaches the cache), [`OutOfRange::SkipSample`] and [`NegativeIndex`]. The
//! defaults follow the specifications.
//!
//! # Speed
//!
//! What a shape decides is decided when it is prepared: kernels are chosen for the length of a run and for the
//! widest [instruction set](Isa) that the machine has. A call allocates nothing and takes no lock. Large writes can
//! use the caller's threads through an [`Executor`]; without one everything runs on the calling thread.
//!
//! # Features
//!
//! `std` (default): instruction sets are detected when the program runs; without it, kernels use what the target
//! is compiled for, and the crate needs `alloc` alone. `picture` adds the `picture` module: plans drawn as text and
//! as SVG.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(unsafe_code)]
#![doc(test(attr(deny(unused_must_use))))]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "sizes and indices come from strangers: every computation on them is checked or proved"
)]

extern crate alloc;

mod argument;
#[expect(unsafe_code, reason = "copies through pointers, which P1 proves")]
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
mod size;
pub mod spec;
mod write;

pub use argument::Argument;
pub use bytemuck::NoUninit;
pub use cpu::{Executor, Isa};
pub use element::{DlpackType, ElementType, ParseElementTypeError};
pub use error::Error;
pub use geometry::{Block, Geometry, Layout, Loop};
pub use plan::{Call, Convention, Integers, Lengths, Mode, NegativeIndex, OutOfRange, Positions, Segment};
pub use prepared::Prepared;
pub use write::{BufferPairs, CacheMemory, RawBuffer, WritePlan, Written};
