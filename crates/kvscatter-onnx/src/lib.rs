//! ONNX files for kvscatter.
#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "files come from strangers: every size and index read from one is checked"
)]

mod tensor;

pub use tensor::{Data, DataMut, Tensor, TensorError, storage_len};
