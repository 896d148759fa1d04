//! The element types of attention.

use half::{bf16, f16};
use kvscatter::ElementType;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for i8 {}
}

/// An element type, whose elements are read as float32: `f32`, [`half::f16`], [`half::bf16`] or `i8`.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// The element type in ONNX.
    const ELEMENT: ElementType;

    /// Converts the element to float32, without loss.
    fn to_f32(self) -> f32;
}

macro_rules! element {
    ($($element:ty: $code:ident, $widen:expr);*) => {$(
        impl Element for $element {
            const ELEMENT: ElementType = ElementType::$code;

            fn to_f32(self) -> f32 {
                $widen(self)
            }
        }
    )*};
}

element!(f32: Float32, f32::from; f16: Float16, f16::to_f32; bf16: BFloat16, bf16::to_f32; i8: Int8, f32::from);
