//! The pure-Rust engine [tract](https://github.com/sonos/tract), with a KV cache that is written in place.
//!
//! * [`register`] adds operators to tract's ONNX reader.
//!   * `TensorScatter-24` calls [`kvscatter`]. It writes the cache in place unless another value of the plan
//!     shares the cache. [`cache_copy_counts`] counts the copies of shared caches.
//!   * `Attention` (operator sets 23 to 25) calls [`kvscatter_attention`]. It reads only the rows of a cache
//!     that a query sees, by `nonpad_kv_seqlen`, the window and the mask. What lies in the other rows has no
//!     influence. With `nonpad_kv_seqlen`, optimised plans compute the mask only for the columns of valid
//!     slots. A large call uses the threads of the plan.
//!     Rings need no attribute. `TensorScatter` with mode `circular` writes them in place, a mask shows the slots of
//!     a window, and the lengths are at most the capacity. With more slots than the window, the results have the
//!     bits of a linear cache.
//!   * `MatMulNBits` replaces tract's operator, because tract 0.23.9 returns wrong products for it. Its weights stay
//!     codes in memory.
//!   * `QuantizeLinear` also takes one scale for each row, as int8 caches need it. tract's own operator does not.
//! * [`Tract`] reads caches of float16, and of int8 codes with a scale for each row, without a conversion of all slots,
//!   and writes codes and scales of keys and values in one operator.
//! * [`Tract`] lays out constant float32 weights once, when it loads a model. A product with them reads each weight
//!   once per run, uses the threads of the plan, and gives a row the same bits in every batch. [`Tract`] implements
//!   [`Engine`](kvscatter_session::Engine) with tract. A run takes the caches and returns them, even if it fails.
//!
//! [`register`] takes a type of `tract-onnx`, and this crate requires one exact version of `tract-onnx`. Use
//! the re-export [`kvscatter_tract::tract_onnx`](tract_onnx).
//!
//! # A whole decoder with a running batch
//!
//! ```
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mobius-llama-static/model.onnx");
//! # let model = std::path::Path::new(model);
//! use kvscatter_session::{KvSession, SessionOptions, argmax};
//!
//! let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
//! let mut session = KvSession::open(&kvscatter_tract::Tract, model, options)?; // allocates the caches, once
//! let (first, second) = (session.add()?, session.add()?);
//! let mut logits = session.prefill(&[(first, &[5, 9, 200]), (second, &[101])], 512)?; // lengths may differ
//! for _ in 0..8 {
//!     let [one, two] = [first, second].map(|sample| logits.last(sample).map_or(0, argmax) as i64);
//!     logits = session.step(&[(first, &[one]), (second, &[two])])?; // computes write_indices and masks
//! }
//! session.truncate(first, 3)?; // for speculative decoding; no byte moves
//! # assert_eq!((session.cached_tokens(first)?, session.cached_tokens(second)?), (3, 9));
//! # Ok::<(), kvscatter_session::SessionError>(())
//! ```
//!
//! # A plan of another model
//!
//! ```
//! use kvscatter_tract::tract_onnx::{self, prelude::*};
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/onnx-node/test_tensorscatter/model.onnx");
//! let mut onnx = tract_onnx::onnx();
//! kvscatter_tract::register(&mut onnx);
//! let plan = onnx.model_for_path(model)?.into_optimized()?.into_runnable()?;
//! let mut state = plan.spawn()?;
//! let cache = Tensor::zero::<f32>(&[2, 1, 4, 5])?;
//! let update = Tensor::zero::<f32>(&[2, 1, 1, 5])?;
//! let at = cache.as_bytes().as_ptr();
//! let present = state.run(tvec!(cache.into(), update.into(), tensor1(&[1_i64, 2]).into()))?;
//! assert_eq!(present[0].as_bytes().as_ptr(), at); // not copied
//! assert_eq!(kvscatter_tract::cache_copy_counts(&state), []);
//! # TractResult::Ok(())
//! ```
//!
//! # Limits
//!
//! * tract has 13 of the 24 element types. It has no bfloat16, no complex numbers, no 8-bit or 4-bit floats
//!   and no 4-bit integers.
//! * `Attention` takes float32 and float16.
//! * `MatMulNBits` rejects `g_idx` if the zero points are packed or the weights do not have 4 bits. With `g_idx`, each
//!   weight takes 4 bytes of memory. Plans that are not optimised lay out its weights in every run.
//! * tract keeps the sizes of a failed run, and the number of valid slots is one of them. If a run of your plan
//!   fails, call `reset_turn` on its state before you run it again. [`Tract`] does this.
//! * tract folds constants of any size when it loads a model. Run untrusted models in a process whose memory
//!   is limited.
#![warn(missing_debug_implementations)]
#![deny(unsafe_code)]

mod attention;
mod attributes;
mod constant_product;
mod element;
mod engine;
mod error;
mod lay_out;
mod matmul_nbits;
mod product;
mod quantize;
mod scatter;
mod threads;

use tract_onnx::Onnx;

pub use engine::Tract;
pub use scatter::cache_copy_counts;
pub use tract_onnx;

/// Adds `TensorScatter` to tract's ONNX reader, and replaces its `Attention`, `MatMulNBits` and `QuantizeLinear`.
pub fn register(onnx: &mut Onnx) {
    onnx.op_register.insert("TensorScatter", scatter::build);
    onnx.op_register.insert("Attention", attention::build);
    onnx.op_register.insert("MatMulNBits", matmul_nbits::build);
    onnx.op_register.insert("QuantizeLinear", quantize::build);
}

/// The examples of this crate's README are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
