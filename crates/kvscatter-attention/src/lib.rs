//! ONNX `Attention` on the CPU over static KV caches. It reads only the slots that a query sees.
//!
//! A static cache has a slot for each token that may ever come. Most runtimes multiply a query with all slots
//! and mask the products afterwards. This crate reads the keys and values of visible slots, so the time of a
//! step follows the context and not the capacity.
//!
//! [`Attention`] has the attributes of the operator. [`Attention::prepare`] checks the [`Shapes`] of the
//! tensors once. [`Prepared::run`] computes one call: [`Inputs`] are what it reads and [`Outputs`] what it
//! writes. A [`Scratch`] is the memory that it works in.
//!
//! # Words
//! - A **slot** is an index of the cache along the sequence, and the **capacity** is the number of slots.
//! - The **position** of a token is its index in the sequence of its sample. A linear cache has position `p`
//!   in slot `p`. A **ring** has it in slot `p mod capacity`, and contains the last positions.
//! - A query **sees** a slot if the slot contains a token, the position is within the limits of causality and
//!   windows, and the mask does not hide the slot.
//! - Query heads that share a head of keys and values are a **group**.
//!
//! # Decode with ragged lengths
//! The samples of a batch have different numbers of tokens, which is the input `nonpad_kv_seqlen`. It counts
//! the tokens of this step too.
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
//! let inputs = Inputs { query: &query, key: &key, value: &value, mask: None, past: None, valid };
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
//! The lengths of a ring keep counting when it is full. A window of `n` positions before the query needs
//! `n + queries` slots.
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
//! let inputs = Inputs { query: &query, key: &key, value: &value, mask: None, past: None, valid };
//! decode.run(&inputs, &mut Outputs::new(&mut output), &mut decode.scratch(1), None)?;
//! assert_eq!(output, [8.0]);
//! # Ok::<(), kvscatter_attention::AttentionError>(())
//! ```
//!
//! # Threads
//! [`Prepared::run`] takes an [`Executor`](kvscatter::Executor) with the threads of the calling program. They
//! divide the batch and the heads, and also the positions if there are fewer heads than threads. Short calls
//! use one thread.
//!
//! # Guarantees
//! - Keys and values that no query sees have no influence, not even NaN. Only an output of scores before the
//!   mask depends on such keys.
//! - The result depends neither on the number of threads, nor on the capacity, nor on where a ring contains a
//!   position. The bits are the same.
//! - Nothing has been written after an error, and no call reads or writes outside its buffers.
//! - [`Prepared::run`] allocates nothing.
//! - A result in float32 differs from the exact one by at most 2e-6 times the largest value that is seen. A
//!   result in a half type is that result rounded.
//!
//! # Limits
//! - A key or value that is NaN or infinite may reach all queries of its sample and head if one of them sees
//!   it.
//! - An output of scores, and a softmax in float64, need memory for the scores of every slot.
//! - The results of two instruction sets may differ in the last bits.
#![deny(unsafe_op_in_unsafe_fn)]

mod block;
mod chunk;
mod element;
mod error;
mod kernel;
mod mask;
mod operands;
mod operator;
mod partial;
mod prepared;
mod room;
mod runs;
mod setup;
mod sizes;
mod slots;
mod streams;
mod threads;

pub use element::Element;
pub use error::{AttentionError, Operand};
pub use kernel::Float;
pub use mask::Mask;
pub use operands::{Inputs, Outputs, Shapes, Valid};
pub use operator::{Attention, Scores, Softmax};
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
