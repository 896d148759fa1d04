//! Errors about the messages of tensors.

use kvscatter::ElementType;

/// An error about the messages of tensors.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum TensorProtoError {
    /// `data_type` is absent or `UNDEFINED`.
    #[error("data_type is undefined")]
    UndefinedType,
    /// The type of the tensor is not one of the 24 types of `TensorScatter`.
    #[error("data_type {code} is not one of the 24 types that TensorScatter supports")]
    UnsupportedType { code: i32 },
    /// A dimension is negative.
    #[error("dims[{axis}] = {dim} is negative")]
    NegativeDim { axis: usize, dim: i64 },
    /// `segment` is set, so the message contains only a part of a tensor.
    #[error("segment is set: tensors stored in parts are not supported")]
    Segment,
    /// Two fields contain values, but only one may.
    #[error("both {first} and {second} are present")]
    TwoFields { first: &'static str, second: &'static str },
    /// The values are in a field that does not store this type.
    #[error("{element} is stored in {expected}, not in {field}")]
    WrongField { element: ElementType, field: &'static str, expected: &'static str },
    /// The number of entries in a typed field does not match the shape.
    #[error("shape {shape:?} of {element} takes {expected} entries in {field}, got {got}")]
    EntryCount { element: ElementType, shape: Vec<usize>, field: &'static str, expected: usize, got: usize },
    /// An entry of a typed field is not a value of the type.
    #[error("{field}[{index}] = {value} does not fit {element}")]
    EntryRange { element: ElementType, field: &'static str, index: usize, value: i128 },
}

crate::cause!(TensorProtoError, Into::into);
