//! Converts the errors of attention to exceptions.

use kvscatter_attention::AttentionError;
use pyo3::prelude::*;

use crate::error::{self, Class, Field};

/// Creates the exception for an error of attention.
#[cold]
pub(crate) fn raise(py: Python<'_>, refused: &AttentionError) -> PyErr {
    let (class, kind, fields) = describe(refused);
    error::raise(py, class, kind, None, refused.python_message(), &fields)
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
