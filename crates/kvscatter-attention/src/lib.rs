//! ONNX `Attention` on the CPU over static KV caches. It reads only the slots that a query sees.
//!
//! A static cache has slots for the longest text, and most of them are empty. Most runtimes multiply a query
//! with all slots and mask the products afterwards. This crate reads only keys and values of visible slots, so
//! the time of a step follows the context and not the capacity.
//!
//! 1. Set the attributes of the operator in an [`Attention`].
//! 2. Call [`Attention::prepare`] once for each set of [`Shapes`]. It returns a [`Prepared`].
//! 3. Allocate a [`Scratch`], its working memory, with [`Prepared::scratch`].
//! 4. Call [`Prepared::run`] in each step, with [`Inputs`] and [`Outputs`].
//!
//! # Words
//! - A **slot** is an index of the cache along the sequence, and the **capacity** is the number of slots.
//! - The **position** of a token is its index in the sequence of its sample. A linear cache has position `p`
//!   in slot `p`. A **ring** has it in slot `p mod capacity`, and contains the last positions.
//! - A query **sees** a slot if the slot contains a token and neither causality, nor a window, nor the mask
//!   hides it.
//! - Query heads that share a head of keys and values are a **group**.
//!
//! # Decode with ragged lengths
//! Each sample of a batch has its own number of tokens. ONNX passes these numbers as `nonpad_kv_seqlen`. They
//! include the tokens of this step.
//!
//! ```
//! use kvscatter::ElementType;
//! use kvscatter_attention::{Attention, Inputs, Outputs, Shapes, Valid};
//!
//! let shapes = Shapes {
//!     element: ElementType::Float32,
//!     query: &[3, 2, 1, 4],
//!     key: &[3, 1, 8, 4],
//!     value: &[3, 1, 8, 2],
//!     mask: None,
//!     past: None,
//! };
//! let decode = Attention::new().causal(true).prepare(&shapes)?;
//! let mut scratch = decode.scratch(1);
//!
//! let (query, key) = ([0.5_f32; 24], [0.5_f32; 96]);
//! // The value of the slot `s` is `[s, s]`.
//! let value: Vec<_> = (0..48).map(|n| (n / 2 % 8) as f32).collect();
//! let mut output = [f32::NAN; 12];
//! let valid = Valid::Lengths(&[1, 0, 5]);
//! let inputs = Inputs { valid, ..Inputs::new(&query, &key, &value) };
//! decode.run(&inputs, &mut Outputs::new(&mut output), &mut scratch, None)?;
//!
//! // All keys are equal, so each result is the mean of the values that are seen. A query that sees nothing
//! // gives zeros.
//! let means = output.chunks(4).map(|sample| sample[0]).collect::<Vec<_>>();
//! assert_eq!(means, [0.0, 0.0, 2.0]);
//! # Ok::<(), kvscatter_attention::AttentionError>(())
//! ```
//!
//! # A ring
//! A ring is read in one of two ways: the lengths of a call give positions, or the mask shows slots.
//!
//! If [`Attention::ring`] is set, lengths count all tokens so far, also when the ring is full. If a query sees `n`
//! positions before its own, the ring needs at least `n + queries` slots.
//!
//! ```
//! use kvscatter::ElementType;
//! use kvscatter_attention::{Attention, Inputs, Outputs, Shapes, Valid};
//!
//! let shapes = Shapes {
//!     element: ElementType::Float32,
//!     query: &[1, 1, 1, 2],
//!     key: &[1, 1, 4, 2],
//!     value: &[1, 1, 4, 1],
//!     mask: None,
//!     past: None,
//! };
//! let decode = Attention::new().causal(true).window(Some(2), None).ring().prepare(&shapes)?;
//!
//! // Ten tokens so far: the slots contain the positions 8, 9, 6 and 7. The query at position 9 sees 7, 8 and 9.
//! let (query, key, value) = ([1.0_f32; 2], [1.0_f32; 8], [8.0_f32, 9.0, f32::NAN, 7.0]);
//! let mut output = [0.0_f32];
//! let valid = Valid::Lengths(&[10]);
//! let inputs = Inputs { valid, ..Inputs::new(&query, &key, &value) };
//! decode.run(&inputs, &mut Outputs::new(&mut output), &mut decode.scratch(1), None)?;
//! assert_eq!(output, [8.0]);
//! # Ok::<(), kvscatter_attention::AttentionError>(())
//! ```
//!
//! An ONNX `Attention` node over a ring does not know positions. Its lengths are at most the capacity, and its mask
//! shows to each query the slots of its window, in one range or in two that meet around the end of the cache.
//! [`Attention`] without [`ring`](Attention::ring) reads these slots only. It takes the slot after the gap of the mask
//! as the oldest one. If the mask shows all slots to a query, there is no gap, and slot 0 counts as the oldest one.
//!
//! # Threads
//! [`Prepared::run`] takes an [`Executor`](kvscatter::Executor) with the threads of the calling program.
//! Threads compute different samples, heads and queries. If these are too few for all threads, several threads
//! share the positions of one head. Short calls use one thread.
//!
//! # Guarantees
//! - The result of a query depends only on the keys and values that it sees. All others have no influence on it, even
//!   if they are NaN or infinite.
//! - The bits of a result do not depend on the number of threads, on the capacity, or on the slot of a ring in
//!   which a token lies.
//! - The mask of a ring gives the bits of a linear cache with the same window, if the mask hides a slot from each
//!   query. So the ring needs more slots than the window. In a ring of as many slots as the window, the keys of a full
//!   ring are summed in the order of slots, and the last bits may differ.
//! - A call that returns an error has written nothing. No call reads or writes outside its buffers.
//! - [`Prepared::run`] allocates nothing.
//! - A result in float32 differs from the exact one by at most 2e-6 times the largest value that is seen, for
//!   scores of ordinary size. A result in a half type is that result rounded.
//!
//! # Limits
//! - A call takes longer if it reads values that are NaN or infinite.
//! - `qk_matmul_output` needs memory for a score of every slot, and so does a softmax in float64. In modes 0 and
//!   1, the operator reads every key.
//! - The results of two instruction sets may differ in the last bits.
//! - Scores are float32. A score of 1000 has an error of 6e-5, and its weight has the same relative error.
//! - Weights are divided by their sum last. So a sum of weighted values may overflow if values are near the
//!   largest float32, although their mean would not.
#![deny(unsafe_op_in_unsafe_fn)]

mod aligned;
mod attributes;
mod block;
mod chunk;
mod element;
mod error;
mod float;
mod for_elements;
mod group_query;
mod kernel;
mod mask;
mod operands;
mod operator;
mod partial;
mod places;
mod prepared;
mod room;
mod runs;
mod seen;
mod setup;
mod sizes;
mod slots;
mod streams;
mod threads;
mod wide;

pub use attributes::Attributes;
pub use element::Element;
pub use error::{AttentionError, Operand};
pub use float::Float;
pub use for_elements::{ForElements, for_elements};
pub use group_query::{AttributeValue, CacheScale, Declared, GroupQuery, NotTaken, RotaryOrder};
pub use kernel::CacheElement;
pub use mask::Mask;
pub use operands::{Inputs, Outputs, Scales, Shapes, Valid};
pub use operator::{Attention, Scores, Softmax};
pub use places::Strides;
pub use prepared::Prepared;
pub use room::Scratch;

/// The example of this crate's README is tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of this page are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/attention.md")]
struct Page;
