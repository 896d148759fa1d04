//! The messages of `onnx.proto`, and the limits for decoding them.
//!
//! A message keeps the bytes of the fields that are not declared here, and writes them after the others.

mod build;
mod field;
mod messages;
mod wire;

use crate::OnnxError;

pub use field::{Message, MessageField};
pub use messages::*;
pub use wire::DecodeError;
use wire::Writer;
pub(crate) use wire::{BYTES, Reader, VARINT};

/// An error about protobuf messages.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ProtoError {
    /// The bytes are not a protobuf message of this type.
    #[error("not a {message}: {cause}")]
    Decode { message: &'static str, cause: crate::proto::DecodeError },
    /// The message takes more bytes than protobuf allows.
    #[error("cannot write the {message}: {bytes} bytes exceed protobuf's limit of 2 GiB")]
    Encode { message: &'static str, bytes: usize },
}

crate::cause!(ProtoError, Into::into);

/// Protobuf's own limit on the size of a message in bytes: 2 GiB - 1.
pub const MAX_MESSAGE_BYTES: u64 = 0x7FFF_FFFF;

/// Decodes a message.
///
/// The limits are 2 GiB for the message, 100 levels of nesting, and 256 MiB for messages and the elements of lists
/// in memory. The last limit does not count the bytes of strings, nor numbers, because the file contains them.
///
/// # Errors
/// Returns [`ProtoError::Decode`] if the bytes are not a message of this type or exceed a limit.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, OnnxError> {
    if exceeds_limit(bytes.len()) {
        return Err(ProtoError::Decode { message: M::NAME, cause: DecodeError::TooLarge }.into());
    }
    let mut message = M::default();
    let mut reader = Reader::new(bytes);
    while !reader.rest().is_empty() {
        message.merge_next(&mut reader).map_err(|cause| ProtoError::Decode { message: M::NAME, cause })?;
    }
    Ok(message)
}

/// Encodes a message, including its unknown fields.
///
/// # Errors
/// Returns [`ProtoError::Encode`] if the message takes more than 2 GiB.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, OnnxError> {
    let mut writer = Writer::new();
    message.write_fields(&mut writer);
    if exceeds_limit(writer.len()) {
        return Err(ProtoError::Encode { message: M::NAME, bytes: writer.len() }.into());
    }
    let mut writer = writer.second_pass();
    message.write_fields(&mut writer);
    Ok(writer.into_bytes())
}

/// Returns the number of bytes that [`encode`] writes.
pub(crate) fn encoded_len(message: &impl Message) -> usize {
    let mut writer = Writer::new();
    message.write_fields(&mut writer);
    writer.len()
}

fn exceeds_limit(bytes: usize) -> bool {
    !u64::try_from(bytes).is_ok_and(|bytes| bytes <= MAX_MESSAGE_BYTES)
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
