//! Converts the errors of attention to exceptions.

use kvscatter_attention::AttentionError;
use pyo3::prelude::*;

use crate::error::{self, Class, Field};

/// The names of ONNX that messages contain, and those of this package's arguments.
const NAMES: [(&str, &str); 11] = [
    ("the scale of K", "k_scale"),
    ("the scale of V", "v_scale"),
    ("nonpad_kv_seqlen", "lengths"),
    ("attn_mask", "mask"),
    ("head_sink", "sink"),
    ("block_table", "block_tables"),
    ("float,", "float32,"),
    ("Q", "q"),
    ("K", "k"),
    ("V", "v"),
    ("Y", "out"),
];

/// Creates the exception for an error of attention.
#[cold]
pub(crate) fn raise(py: Python<'_>, refused: &AttentionError) -> PyErr {
    let (class, kind, fields) = describe(refused);
    error::raise(py, class, kind, None, message(refused), &fields)
}

/// Returns the message with the names of this package's arguments.
fn message(refused: &AttentionError) -> String {
    NAMES.iter().fold(refused.to_string(), |message, (onnx, python)| {
        let mut parts = message.split(onnx);
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_inside =
                |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let is_word = !is_inside(renamed.chars().next_back()) && !is_inside(part.chars().next());
            renamed.push_str(if is_word { python } else { onnx });
            renamed.push_str(part);
        }
        renamed
    })
}

fn describe(refused: &AttentionError) -> (Class, &'static str, Vec<(&'static str, Field)>) {
    let of_position =
        |index: usize, value: i64| vec![("index", Field::Size(index)), ("value", Field::Int(value))];
    match refused {
        AttentionError::ElementType { element } => {
            (Class::ElementType, "element_type", vec![("element", (*element).into())])
        }
        AttentionError::OtherElementType { got, .. } => {
            (Class::ElementType, "element_type_mismatch", vec![("element", (*got).into())])
        }
        AttentionError::Scale { .. } | AttentionError::Softcap { .. } => {
            (Class::Option, "number_range", vec![])
        }
        AttentionError::Group { .. } => (Class::Shape, "heads", vec![]),
        AttentionError::Shape { .. } | AttentionError::MaskShape { .. } => {
            (Class::Shape, "dimension_mismatch", vec![])
        }
        AttentionError::TooLarge { .. } | AttentionError::EmptySlots { .. } => {
            (Class::Shape, "too_large", vec![])
        }
        AttentionError::EmptyBlocks => (Class::Shape, "empty_blocks", vec![]),
        AttentionError::Length { got, expected, .. } => {
            (Class::Shape, "list_length", error::sizes([("got", *got), ("expected", *expected)]))
        }
        AttentionError::LengthOutOfRange { index, value, max } => {
            let mut fields = of_position(*index, *value);
            fields.extend([("min", Field::Int(0)), ("max", Field::Int(*max))]);
            (Class::Position, "length_out_of_range", fields)
        }
        AttentionError::NegativeStart { index, value } => {
            let mut fields = of_position(*index, *value);
            fields.push(("min", Field::Int(0)));
            (Class::Position, "negative_start", fields)
        }
        AttentionError::BlockOutOfRange { sample, index, value, max } => {
            let mut fields = of_position(*index, (*value).into());
            fields.extend([("sample", Field::Size(*sample)), ("blocks", Field::Int(max.saturating_add(1)))]);
            (Class::Position, "block_out_of_range", fields)
        }
        AttentionError::Overlap { .. } => (Class::Array, "overlap", vec![]),
        AttentionError::TooShort { .. } => (Class::Array, "too_short", vec![]),
        // Arguments that cannot be combined.
        _ => (Class::Option, "combination", vec![]),
    }
}
