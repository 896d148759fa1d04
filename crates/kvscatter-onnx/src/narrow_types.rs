//! The element types that `TensorScatter` supports but most other operators do not.

use kvscatter::ElementType;

/// Returns `true` if a type is a float of 8 bits or any type of 4 bits.
///
/// `ScatterElements`, `ScatterND` and ONNX Runtime's kernel of `TensorScatter` support none of these types.
pub(crate) fn is_narrow(element: ElementType) -> bool {
    matches!(
        element,
        ElementType::Float8E4M3Fn
            | ElementType::Float8E4M3FnUz
            | ElementType::Float8E5M2
            | ElementType::Float8E5M2FnUz
            | ElementType::Float8E8M0
            | ElementType::Float4E2M1
            | ElementType::Int4
            | ElementType::UInt4
    )
}
