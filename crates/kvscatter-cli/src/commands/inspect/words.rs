//! What the terms of a decoder are called in text and in JSON.

use kvscatter_onnx::Dimension;
use kvscatter_onnx::decoder::{CachePart, Role, UnknownStyle, WriterStyle};

/// A dimension as it is declared.
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
        CachePart::Unknown => "?",
    }
}

pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::Past(_) => "past",
        Role::AttentionMask => "attention mask",
        Role::PositionIds => "position ids",
        Role::TokenIds => "token ids",
        Role::WriteIndices => "write_indices",
        Role::NonpadKvSeqlen => "nonpad_kv_seqlen",
        Role::SeqlensK => "seqlens_k",
        Role::TotalSequenceLength => "total_sequence_length",
        Role::Other => "other",
    }
}

/// The operator alone. Another line explains why a style is unknown.
pub(super) fn style(style: &WriterStyle) -> String {
    match style {
        WriterStyle::Unknown(UnknownStyle::Operator { op_type, .. }) => format!("{op_type} (unknown)"),
        WriterStyle::Unknown(_) => "unknown".to_owned(),
        style => style.to_string(),
    }
}
