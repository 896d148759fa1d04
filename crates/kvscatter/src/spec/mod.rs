//! The three specifications, each in its own words. What they share ends in one
//! [`Geometry`](crate::Geometry), and behind it nobody knows which of them it was.

pub mod ascend;
pub mod onnx;
pub mod tensorrt;
