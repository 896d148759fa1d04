//! Reads the values of attributes and checks their types.

use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, TensorProto};
use crate::{GraphError, OnnxError};

pub(crate) fn int(attribute: &AttributeProto) -> Result<i64, OnnxError> {
    of_type(attribute, AttributeType::INT, "INT")?;
    Ok(attribute.i.unwrap_or_default())
}

pub(crate) fn ints(attribute: &AttributeProto) -> Result<&[i64], OnnxError> {
    of_type(attribute, AttributeType::INTS, "INTS")?;
    Ok(&attribute.ints)
}

pub(crate) fn float(attribute: &AttributeProto) -> Result<f32, OnnxError> {
    of_type(attribute, AttributeType::FLOAT, "FLOAT")?;
    Ok(attribute.f.unwrap_or_default())
}

pub(crate) fn floats(attribute: &AttributeProto) -> Result<&[f32], OnnxError> {
    of_type(attribute, AttributeType::FLOATS, "FLOATS")?;
    Ok(&attribute.floats)
}

pub(crate) fn string(attribute: &AttributeProto) -> Result<&[u8], OnnxError> {
    of_type(attribute, AttributeType::STRING, "STRING")?;
    Ok(attribute.s.as_deref().unwrap_or_default())
}

pub(crate) fn strings(attribute: &AttributeProto) -> Result<&[Vec<u8>], OnnxError> {
    of_type(attribute, AttributeType::STRINGS, "STRINGS")?;
    Ok(&attribute.strings)
}

pub(crate) fn tensor(attribute: &AttributeProto) -> Result<&TensorProto, OnnxError> {
    of_type(attribute, AttributeType::TENSOR, "TENSOR")?;
    Ok(&attribute.t)
}

/// Checks the type of an attribute.
///
/// A reference to a function's attribute has no value. Code that expands functions resolves it before this
/// check.
fn of_type(attribute: &AttributeProto, ty: AttributeType, expected: &'static str) -> Result<(), OnnxError> {
    let is_reference = attribute.ref_attr_name.as_ref().is_some_and(|name| !name.is_empty());
    if attribute.r#type == Some(ty) && !is_reference {
        return Ok(());
    }
    Err(GraphError::AttributeType { name: attribute.name.clone().unwrap_or_default(), expected }.into())
}
