//! The names of the terms of a decoder in text and in JSON.

use kvscatter_onnx::Dimension;
use kvscatter_onnx::decoder::{CachePart, EncoderPart, Input, InputRole, UnknownStyle, WriterStyle};

/// Returns a dimension as the model declares it.
pub(super) fn dim(dim: &Dimension<'_>) -> String {
    match dim {
        Dimension::Known(size) => size.to_string(),
        Dimension::Symbolic(symbol) => (*symbol).to_owned(),
        Dimension::Unknown => "?".to_owned(),
    }
}

pub(super) fn part(part: CachePart) -> &'static str {
    match part {
        CachePart::Key => "keys",
        CachePart::Value => "values",
        CachePart::Both => "keys and values",
        CachePart::Latent => "latents",
        CachePart::Unknown => "?",
    }
}

pub(super) fn role(input: &Input<'_>) -> &'static str {
    match input.role {
        InputRole::Past(_) => "past",
        InputRole::State(_) => "state",
        InputRole::AttentionMask => "attention mask",
        InputRole::BlockIds => "ids of blocks",
        InputRole::PositionIds => "position ids",
        InputRole::SharedPositions => "positions of all samples",
        InputRole::TokenIds => "token ids",
        InputRole::Embeddings => "embeddings",
        InputRole::WriteIndices => "write_indices",
        InputRole::NonpadKvSeqlen => "nonpad_kv_seqlen",
        InputRole::SeqlensK => "seqlens_k",
        InputRole::TotalSequenceLength => "total_sequence_length",
        InputRole::Encoder(EncoderPart::Keys) => "cross keys",
        InputRole::Encoder(EncoderPart::Values) => "cross values",
        InputRole::Encoder(EncoderPart::States) => "encoder states",
        InputRole::Encoder(EncoderPart::Mask) => "encoder mask",
        InputRole::Unread => "unread",
        InputRole::Other => "other",
    }
}

/// Returns the operator of a style. Another line explains why a style is unknown.
pub(super) fn style(style: &WriterStyle) -> String {
    match style {
        WriterStyle::Unknown(UnknownStyle::Operator { op_type, .. }) => format!("{op_type} (unknown)"),
        WriterStyle::Unknown(_) => "unknown".to_owned(),
        style => style.to_string(),
    }
}
