//! The three specifications, each in its own words. Their `prepare` ends in one [`Geometry`](crate::Geometry), and no
//! layer below knows which of them it was.

pub mod ascend;
mod inferred;
pub mod onnx;
mod operands;
pub mod tensorrt;

use inferred::fill_unknown;
pub use inferred::{Dimension, PartialTensor};
pub use operands::same_element_type;
