//! The generated messages of `onnx.proto` (ONNX 1.23.2), and the limits for decoding them.
//!
//! Messages keep unknown fields and write them again. `cargo xtask codegen` generates `onnx.rs`, which is
//! checked in so that a build does not need a protobuf compiler.

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

/// Protobuf's own limit on the size of a message in bytes: 2 GiB - 1.
pub const MAX_MESSAGE_BYTES: u64 = 0x7FFF_FFFF;

/// The limit on the memory of elements of repeated fields, which take more bytes in memory than in the file.
///
/// A node with its names and attributes takes about 1 KiB. The limit therefore allows graphs of about 250,000
/// nodes.
const ELEMENT_MEMORY_BYTES: usize = 256 << 20;

/// Decodes a message.
///
/// The limits are 2 GiB for the message, 100 levels of nesting, a million unknown fields, and 256 MiB of
/// memory beyond the message's own bytes.
///
/// # Errors
/// Returns [`OnnxError::Decode`] if the bytes are not a message of this type or exceed a limit.
pub fn decode<M: Message + MessageName>(bytes: &[u8]) -> Result<M, OnnxError> {
    DecodeOptions::new()
        .with_element_memory_limit(ELEMENT_MEMORY_BYTES)
        .decode_from_slice(bytes)
        .map_err(|cause| OnnxError::Decode { message: M::NAME, cause })
}

/// Encodes a message, including its unknown fields.
///
/// # Errors
/// Returns [`OnnxError::Encode`] if the message takes more than 2 GiB.
pub fn encode<M: Message + MessageName>(message: &M) -> Result<Vec<u8>, OnnxError> {
    message.try_encode_to_vec().map_err(|cause| OnnxError::Encode { message: M::NAME, cause })
}

/// Returns an entry of the `metadata_props` of a model, or `None` if there is none with this key.
pub(crate) fn metadata<'m>(model: &'m ModelProto, key: &str) -> Option<&'m str> {
    let mut entries = model.metadata_props.iter();
    entries.find(|entry| entry.key.as_deref() == Some(key))?.value.as_deref()
}

/// Sets an entry of the `metadata_props` of a model.
pub(crate) fn set_metadata(model: &mut ModelProto, key: &str, value: &str) {
    let entries = &mut model.metadata_props;
    entries.retain(|entry| entry.key.as_deref() != Some(key));
    entries.push(StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
        ..StringStringEntryProto::default()
    });
}
