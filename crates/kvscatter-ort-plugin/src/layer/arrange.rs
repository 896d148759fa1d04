//! Rotates new rows, and puts rows into the order in which they are used.

use core::mem::MaybeUninit;

use kvscatter::quantize;
use kvscatter_attention::Float;

use super::Rows;
use super::call::LayerCall;
use super::heads::Heads;
use super::rotation::Angles;
use crate::status::CallError;
use crate::workspace::elements_mut;

/// Rows of a call, and the order in which they are used.
#[derive(Clone, Copy)]
pub(super) struct Arrangement {
    pub(super) rows: Heads,
    is_rotated: bool,
    has_hadamard: bool,
    to_by_token: bool,
}

impl Arrangement {
    pub(super) fn new(of: &Rows, rows: Heads, to_by_token: bool) -> Self {
        let Rows { rotation, has_hadamard, .. } = of;
        Self { rows, is_rotated: rotation.is_some(), has_hadamard: *has_hadamard, to_by_token }
    }

    /// Returns the number of elements of memory that [`apply`](Self::apply) needs.
    pub(super) fn memory(self) -> usize {
        if self.keeps() { 0 } else { self.rows.len() }
    }

    fn keeps(self) -> bool {
        !self.is_rotated && !self.has_hadamard && self.rows.keeps_order(self.to_by_token)
    }

    /// Returns the rows of the tensor `from` in the order that is wanted. They are in `memory`, unless the tensor has
    /// this order already. Returns an error if an input of the rotation does not fit, or if the tensor does not have
    /// the rows.
    pub(super) fn apply<'m, T: Float>(
        self,
        call: &LayerCall<'_>,
        of: &Rows,
        from: &'m [T],
        memory: &'m mut [u64],
    ) -> Result<&'m [T], CallError> {
        let Self { rows, to_by_token, .. } = self;
        let too_few = || CallError::fail("an input has fewer elements than its shape requires");
        if self.keeps() {
            let first = rows.first_element();
            return from.get(first..first + rows.len()).ok_or_else(too_few);
        }
        let named = |failure| CallError::fail(format!("RotaryEmbedding: {failure}"));
        let rotation = of.rotation.as_ref();
        let angles =
            rotation.map(|rotation| Angles::<T>::read(call, rotation, rows)).transpose().map_err(named)?;
        let to = elements_mut::<T>(memory, rows.len());
        for place @ [sample, token, _] in rows.places() {
            let [first, at] = [rows.source(place), rows.dense(to_by_token, place)];
            let row = from.get(first..first + rows.size).zip(to.get_mut(at..at + rows.size));
            let (from, to) = row.ok_or_else(too_few)?;
            match &angles {
                None => to.copy_from_slice(from),
                Some(angles) => {
                    let of_row = angles.row(sample * rows.tokens + token).map_err(named)?;
                    angles.rotate(of_row, from, to);
                }
            }
            if self.has_hadamard {
                // `find` takes a product with the matrix only if the rows are float32.
                quantize::rotate_row(bytemuck::cast_slice_mut(to));
            }
        }
        Ok(to)
    }
}

/// Copies rows, which `from` has head after head, to the order token after token.
pub(super) fn by_token<T: Float>(rows: Heads, from: &[T], to: &mut [MaybeUninit<T>]) {
    for place in rows.places() {
        let [first, at] = [false, true].map(|by_token| rows.dense(by_token, place));
        let from = from.get(first..first + rows.size).unwrap_or_default();
        let to = to.get_mut(at..at + rows.size).unwrap_or_default();
        to.iter_mut().zip(from).for_each(|(to, from)| {
            to.write(*from);
        });
    }
}
