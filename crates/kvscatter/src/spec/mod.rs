//! The fronts: the three specifications, each in its own words. What they share ends in one
//! [`Geometry`](crate::Geometry), and no layer below knows which of them it was.

pub mod ascend;
mod inferred;
pub mod onnx;
pub mod positions;
mod sides;
pub mod tensorrt;

pub use inferred::{Dimension, Inferred, fill_unknown};
