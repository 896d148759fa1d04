//! The element types that `TensorScatter` has and most other operators have not.

use kvscatter::ElementType;

/// Whether a type is a float of 8 bits or has 4 bits. `ScatterElements` and `ScatterND` have none of these types, and
/// neither has ONNX Runtime's kernel of `TensorScatter`.
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
