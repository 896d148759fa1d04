//! Rotates rows by their positions, as ONNX `RotaryEmbedding` does.

use std::borrow::Cow;

use kvscatter::ElementType;
use kvscatter_attention::{Float, RotaryOrder};

use super::Rotation;
use super::call::LayerCall;
use super::heads::Heads;
use crate::input::{Named, Role};
use crate::rotary::rotate;
use crate::status::CallError;

/// The angles of a call.
pub(super) struct Angles<'a, T: Float> {
    /// The cosines and sines of each position, `[positions, rotated elements / 2]`.
    cos: Cow<'a, [T]>,
    sin: Cow<'a, [T]>,
    /// The position of each row of each sample, `[batch, tokens]`.
    positions: Cow<'a, [i64]>,
    /// Half the number of elements of a head that are rotated.
    half: usize,
    order: RotaryOrder,
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
        let expected = [rows.batch, rows.tokens].map(|size| size as i64);
        if positions.shape() != expected {
            let shape = positions.shape();
            return Err(positions.role.failure(format!("has shape {shape:?}, must be {expected:?}")));
        }
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
        Ok(Self {
            cos: cos.elements()?,
            sin: sin.elements()?,
            positions: positions.elements()?,
            half,
            order: rotation.order,
        })
    }

    /// Returns the cosines and sines of a row. Returns an error if the angles do not include its position.
    pub(super) fn row(&self, row: usize) -> Result<[&[T]; 2], CallError> {
        let position = self.positions.get(row).copied().unwrap_or(-1);
        let of_position = || {
            let first = usize::try_from(position).ok()?.checked_mul(self.half)?;
            let end = first.checked_add(self.half)?;
            Some([self.cos.get(first..end)?, self.sin.get(first..end)?])
        };
        of_position().ok_or_else(|| {
            let count = self.cos.len().min(self.sin.len()).checked_div(self.half).unwrap_or_default();
            CallError::fail(format!("position_ids has position {position}, must be from 0 to below {count}"))
        })
    }

    /// Rotates the elements of a head. The elements after the rotated ones are copied.
    pub(super) fn rotate(&self, angles: [&[T]; 2], from: &[T], to: &mut [T]) {
        rotate(self.order, angles, from, to);
    }
}
