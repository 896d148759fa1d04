//! The element types of ONNX Runtime.

use kvscatter::ElementType;
use ort::value::TensorElementType;

/// The element types that the core and ONNX Runtime have in common, except strings.
const TYPES: [(ElementType, TensorElementType); 23] = [
    (ElementType::BFloat16, TensorElementType::Bfloat16),
    (ElementType::Bool, TensorElementType::Bool),
    (ElementType::Complex128, TensorElementType::Complex128),
    (ElementType::Complex64, TensorElementType::Complex64),
    (ElementType::Float64, TensorElementType::Float64),
    (ElementType::Float32, TensorElementType::Float32),
    (ElementType::Float16, TensorElementType::Float16),
    (ElementType::Float4E2M1, TensorElementType::Float4E2M1),
    (ElementType::Float8E4M3Fn, TensorElementType::Float8E4M3FN),
    (ElementType::Float8E4M3FnUz, TensorElementType::Float8E4M3FNUZ),
    (ElementType::Float8E5M2, TensorElementType::Float8E5M2),
    (ElementType::Float8E5M2FnUz, TensorElementType::Float8E5M2FNUZ),
    (ElementType::Float8E8M0, TensorElementType::Float8E8M0),
    (ElementType::Int16, TensorElementType::Int16),
    (ElementType::Int32, TensorElementType::Int32),
    (ElementType::Int4, TensorElementType::Int4),
    (ElementType::Int64, TensorElementType::Int64),
    (ElementType::Int8, TensorElementType::Int8),
    (ElementType::UInt16, TensorElementType::Uint16),
    (ElementType::UInt32, TensorElementType::Uint32),
    (ElementType::UInt4, TensorElementType::Uint4),
    (ElementType::UInt64, TensorElementType::Uint64),
    (ElementType::UInt8, TensorElementType::Uint8),
];

pub(crate) fn runtime_element(element: ElementType) -> Option<TensorElementType> {
    TYPES.iter().find(|(of_core, _)| *of_core == element).map(|(_, of_runtime)| *of_runtime)
}

pub(crate) fn core_element(element: TensorElementType) -> Option<ElementType> {
    TYPES.iter().find(|(_, of_runtime)| *of_runtime == element).map(|(of_core, _)| *of_core)
}
