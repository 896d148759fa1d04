//! The three specifications, each in its own words. What they share ends in one
//! [`Geometry`](crate::Geometry), and behind it nobody knows which of them it was.

pub mod ascend;
mod inferred;
pub mod onnx;
pub mod tensorrt;

pub use inferred::{Dimension, Inferred, fill_unknown};
