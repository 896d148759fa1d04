//! Rotates rows by their positions, as ONNX `RotaryEmbedding` does.

use std::borrow::Cow;

use kvscatter::ElementType;
use kvscatter_attention::Float;

use super::Rotation;
use super::call::LayerCall;
use super::heads::Heads;
use crate::input::{Named, Role};
use crate::rotary::{AngleTable, rotate};
use crate::status::CallError;

/// The angles of a call.
pub(super) struct Angles<'a, T: Float> {
    table: AngleTable<'a, T>,
    /// The position of each row of each sample, `[batch, tokens]`.
    positions: Cow<'a, [i64]>,
}

impl<'a, T: Float> Angles<'a, T> {
    /// Reads the inputs of a rotation of these rows. Returns an error if an input has another type or shape than the
    /// operator requires.
    pub(super) fn read(call: &LayerCall<'a>, rotation: &Rotation, rows: Heads) -> Result<Self, CallError> {
        let cos = call.input(rotation.cos, Named("cos_cache"))?;
        let sin = call.input(rotation.sin, Named("sin_cache"))?;
        let positions = call.input(rotation.positions, Named("position_ids"))?;
        for angles in [&cos, &sin] {
            angles.check_element(const { &[T::ELEMENT] })?;
        }
        positions.check_element(const { &[ElementType::Int64] })?;
        let size = if rotation.size == 0 { rows.size } else { rotation.size };
        let half = size / 2;
        if !size.is_multiple_of(2) || size > rows.size {
            return Err(CallError::fail(format!("{size} elements of {} cannot be rotated", rows.size)));
        }
        positions.check_shape([rows.batch, rows.tokens])?;
        for angles in [&cos, &sin] {
            if !matches!(angles.shape(), &[_, columns] if columns == half as i64) {
                let shape = angles.shape();
                return Err(angles.role.failure(format!("has shape {shape:?}, must have {half} columns")));
            }
        }
        if sin.shape() != cos.shape() {
            let (shape, expected) = (sin.shape(), cos.shape());
            return Err(sin
                .role
                .failure(format!("has shape {shape:?}, must be {expected:?} like cos_cache")));
        }
        let (order, cos, sin) = (rotation.order, cos.elements()?, sin.elements()?);
        Ok(Self { table: AngleTable { order, cos, sin, half }, positions: positions.elements()? })
    }

    /// Returns the cosines and sines of a row. Returns an error if the angles do not include its position.
    pub(super) fn row(&self, row: usize) -> Result<[&[T]; 2], CallError> {
        let position = self.positions.get(row).copied().unwrap_or(-1);
        self.table.row(position).ok_or_else(|| {
            let AngleTable { cos, sin, half, .. } = &self.table;
            let count = cos.len().min(sin.len()).checked_div(*half).unwrap_or_default();
            CallError::fail(format!("position_ids has position {position}, must be from 0 to below {count}"))
        })
    }

    /// Rotates the elements of a head. The elements after the rotated ones are copied.
    pub(super) fn rotate(&self, angles: [&[T]; 2], from: &[T], to: &mut [T]) {
        rotate(self.table.order, angles, from, to);
    }
}
