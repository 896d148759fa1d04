//! The element types, and their conversion from the oracle's numbers.

use half::{bf16, f16};
use kvscatter_attention::Float;
use kvscatter_oracle::attention;

/// An element type of the tests.
pub(crate) trait Element: Float + core::fmt::Debug {
    /// The oracle's name of the type.
    const TYPE: attention::Float;

    /// Converts a number that the type can represent.
    fn from_f64(value: f64) -> Self;

    /// Returns the number of the bits.
    fn bits(self) -> u32;
}

impl Element for f32 {
    const TYPE: attention::Float = attention::Float::F32;

    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Element for f16 {
    const TYPE: attention::Float = attention::Float::F16;

    fn from_f64(value: f64) -> Self {
        Self::from_f64(value)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Element for bf16 {
    const TYPE: attention::Float = attention::Float::Bf16;

    fn from_f64(value: f64) -> Self {
        Self::from_f64(value)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

/// Converts numbers that the type can represent.
pub(crate) fn elements<T: Element>(numbers: &[f64]) -> Vec<T> {
    numbers.iter().map(|&number| T::from_f64(number)).collect()
}

pub(crate) fn bits<T: Element>(elements: &[T]) -> Vec<u32> {
    elements.iter().map(|element| element.bits()).collect()
}
