//! The types that attention is computed in.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// An element that sums are made of.
pub(super) trait Float: Copy + Send + Sync + 'static {
    /// These elements as float32: themselves, or in `room`, which is as long.
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
