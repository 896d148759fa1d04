//! ONNX `Attention` on the CPU over static KV caches. It reads only the slots that a query sees.
#![deny(unsafe_op_in_unsafe_fn)]

mod block;
mod element;
mod error;
mod kernel;
mod mask;
mod operands;
mod operator;
mod prepared;
mod sizes;
mod threads;

pub use element::Float;
pub use error::{AttentionError, Operand};
pub use mask::Mask;
pub use operands::{Inputs, Outputs, Shapes, Valid};
pub use operator::{Attention, Scores, Softmax};
pub use prepared::{Prepared, Scratch};

/// The examples of this page are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/attention.md")]
struct Page;
