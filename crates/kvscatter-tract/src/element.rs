//! Conversion between tract's and ONNX's element types.

use kvscatter::ElementType;
use tract_onnx::prelude::DatumType;

/// The types that tract and ONNX have in common.
const TYPES: [(ElementType, DatumType); 13] = [
    (ElementType::Bool, DatumType::Bool),
    (ElementType::UInt8, DatumType::U8),
    (ElementType::UInt16, DatumType::U16),
    (ElementType::UInt32, DatumType::U32),
    (ElementType::UInt64, DatumType::U64),
    (ElementType::Int8, DatumType::I8),
    (ElementType::Int16, DatumType::I16),
    (ElementType::Int32, DatumType::I32),
    (ElementType::Int64, DatumType::I64),
    (ElementType::Float16, DatumType::F16),
    (ElementType::Float32, DatumType::F32),
    (ElementType::Float64, DatumType::F64),
    (ElementType::String, DatumType::String),
];

/// Returns ONNX's type, or `None` for a type that only tract has.
pub(crate) fn ours(theirs: DatumType) -> Option<ElementType> {
    TYPES.iter().find(|(_, datum)| *datum == theirs).map(|(element, _)| *element)
}

/// Returns tract's type, or `None` for a type that tract does not have.
pub(crate) fn theirs(ours: ElementType) -> Option<DatumType> {
    TYPES.iter().find(|(element, _)| *element == ours).map(|(_, datum)| *datum)
}
