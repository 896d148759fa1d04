//! ONNX `Attention` on the CPU over static KV caches. It reads only the slots that a query sees.
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
mod threads;

pub use element::Element;
pub use error::{AttentionError, Operand};
pub use kernel::Float;
pub use mask::Mask;
pub use operands::{Inputs, Outputs, Shapes, Valid};
pub use operator::{Attention, Scores, Softmax};
pub use prepared::Prepared;
pub use room::Scratch;
