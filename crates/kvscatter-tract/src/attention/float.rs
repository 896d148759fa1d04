//! The element types of attention.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// A floating-point element type.
pub(super) trait Float: Copy + Send + Sync + 'static {
    /// Returns these elements as float32. float32 elements are returned unchanged, others are converted into
    /// `room`, which must have the same length.
    fn widen<'a>(row: &'a [Self], room: &'a mut [f32]) -> &'a [f32];

    fn to_f32(self) -> f32;

    fn of_f32(value: f32) -> Self;
}

impl Float for f32 {
    fn widen<'a>(row: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        row
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn of_f32(value: f32) -> Self {
        value
    }
}

impl Float for f16 {
    fn widen<'a>(row: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        row.convert_to_f32_slice(room);
        room
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn of_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}
