//! The element types of queries and results.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::kernel::CacheElement;

/// An element type of queries, results and masks, with its conversions to and from float32, in which the kernels
/// compute: `f32`, [`half::f16`] or [`half::bf16`].
pub trait Float: CacheElement {
    /// The lowest finite number, which masks use instead of negative infinity.
    const LOWEST: Self;

    /// Returns whether the element hides a slot as a number of a mask: whether it is negative infinity, or the lowest
    /// number if `or_lowest`.
    #[doc(hidden)]
    fn is_hidden(self, or_lowest: bool) -> bool;

    /// Converts a number to the nearest element. Ties go to the even one.
    fn of_f32(value: f32) -> Self;

    /// Converts elements to float32. Both slices must have the same length.
    #[doc(hidden)]
    fn widen(from: &[Self], to: &mut [f32]);

    /// Converts numbers to the nearest elements. Both slices must have the same length.
    #[doc(hidden)]
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Float for f32 {
    const LOWEST: Self = Self::MIN;

    fn is_hidden(self, or_lowest: bool) -> bool {
        self <= if or_lowest { Self::MIN } else { Self::NEG_INFINITY }
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
    ($($element:ty),*) => {$(
        impl Float for $element {
            const LOWEST: Self = Self::MIN;

            fn is_hidden(self, or_lowest: bool) -> bool {
                self <= if or_lowest { Self::MIN } else { Self::NEG_INFINITY }
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

half!(f16, bf16);
