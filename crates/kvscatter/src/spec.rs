//! The three specifications, each with the names that it defines, and paged caches.
//!
//! Every `prepare` makes a [`Geometry`](crate::Geometry). The lower layers do not depend on the
//! specification.

pub mod ascend;
mod inferred;
pub mod onnx;
mod operands;
pub mod paged;
pub mod tensorrt;

use inferred::fill_unknown;
pub use inferred::{Dimension, PartialTensor};
pub use operands::same_element_type;
