//! The element types of attention.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kvscatter::ElementType;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A floating-point element type and its conversions to and from float32, in which the kernels compute.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// The element type in ONNX.
    const ELEMENT: ElementType;

    /// The lowest finite number, which masks use instead of negative infinity.
    const LOWEST: Self;

    /// Returns whether the element hides a slot as a number of a mask: whether it is negative infinity, or the lowest
    /// number if `or_lowest`.
    #[doc(hidden)]
    fn is_hidden(self, or_lowest: bool) -> bool;

    /// Converts the element to float32, without loss.
    fn to_f32(self) -> f32;

    /// Converts a number to the nearest element. Ties go to the even one.
    fn of_f32(value: f32) -> Self;

    /// Converts elements to float32. Both slices must have the same length.
    #[doc(hidden)]
    fn widen(from: &[Self], to: &mut [f32]);

    /// Converts numbers to the nearest elements. Both slices must have the same length.
    #[doc(hidden)]
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    const ELEMENT: ElementType = ElementType::Float32;
    const LOWEST: Self = Self::MIN;

    fn is_hidden(self, or_lowest: bool) -> bool {
        self <= if or_lowest { Self::MIN } else { Self::NEG_INFINITY }
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn of_f32(value: f32) -> Self {
        value
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

macro_rules! half {
    ($($element:ty: $code:ident),*) => {$(
        impl Element for $element {
            const ELEMENT: ElementType = ElementType::$code;
            const LOWEST: Self = Self::MIN;

            fn is_hidden(self, or_lowest: bool) -> bool {
                self <= if or_lowest { Self::MIN } else { Self::NEG_INFINITY }
            }

            fn to_f32(self) -> f32 {
                self.to_f32()
            }

            fn of_f32(value: f32) -> Self {
                Self::from_f32(value)
            }

            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

half!(f16: Float16, bf16: BFloat16);
