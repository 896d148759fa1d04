//! The messages of `onnx.proto` (ONNX 1.23.2), generated, and the limits under which bytes become one.
//!
//! A message keeps the fields it does not know and writes them back. `onnx.rs` is made by `cargo xtask codegen` and
//! checked in, so that a build needs no protobuf compiler.

use buffa::{DecodeOptions, Message, MessageName};

use crate::OnnxError;

pub use generated::*;

#[rustfmt::skip]
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::derivable_impls,
    clippy::indexing_slicing,
    reason = "generated code: buffa's decoder checks every length against the bytes that are left"
)]
mod generated {
    include!("proto/onnx.rs");
}

/// Protobuf's own limit on a message, in bytes: 2 GiB - 1.
pub const MAX_MESSAGE_BYTES: u64 = 0x7FFF_FFFF;

/// Memory for the elements of repeated fields, which cost more in memory than in the file. A node with its names
/// and attributes takes about 1 KiB, so this is room for a graph of some 250,000 nodes.
const ELEMENT_MEMORY_BYTES: usize = 256 << 20;

/// Decodes a message: at most 2 GiB, nested at most 100 deep, at most a million unknown fields, and at most
/// 256 MiB of memory beyond what the bytes themselves take.
///
/// # Errors
/// [`OnnxError::Decode`] if the bytes are not such a message.
pub fn decode<M: Message + MessageName>(bytes: &[u8]) -> Result<M, OnnxError> {
    DecodeOptions::new()
        .with_element_memory_limit(ELEMENT_MEMORY_BYTES)
        .decode_from_slice(bytes)
        .map_err(|cause| OnnxError::Decode { message: M::NAME, cause })
}

/// Encodes a message, unknown fields included.
///
/// # Errors
/// [`OnnxError::Encode`] if it takes more than 2 GiB.
pub fn encode<M: Message + MessageName>(message: &M) -> Result<Vec<u8>, OnnxError> {
    message.try_encode_to_vec().map_err(|cause| OnnxError::Encode { message: M::NAME, cause })
}
