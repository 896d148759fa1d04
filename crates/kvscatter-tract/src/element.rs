//! tract's types as ONNX's.

use kvscatter::ElementType;
use tract_onnx::prelude::DatumType;

/// The types that both have.
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

/// ONNX's type; `None` for those that only tract has.
pub(crate) fn ours(theirs: DatumType) -> Option<ElementType> {
    TYPES.iter().find(|(_, datum)| *datum == theirs).map(|(element, _)| *element)
}

/// tract's type; `None` for those that it lacks.
pub(crate) fn theirs(ours: ElementType) -> Option<DatumType> {
    TYPES.iter().find(|(element, _)| *element == ours).map(|(_, datum)| *datum)
}
