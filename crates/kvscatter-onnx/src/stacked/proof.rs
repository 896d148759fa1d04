//! Evaluates small steps to prove which rows the nodes of a layer read and write.

use super::layers::{AXIS, Layer, NOT_SLICED, refused};
use crate::fold::{Fold, Value, elements, signed};
use crate::slice::SlicedAxis;
use crate::{Dimension, Graph, Node, OnnxError, ValueInfo};

/// The size of open dimensions that are neither the samples nor the new tokens.
const OTHER: usize = 19;

/// A step in which the decoder is evaluated.
pub(super) struct Step {
    batch: usize,
    past: usize,
    new: usize,
}

impl Step {
    /// Returns the steps for caches of this many slots: a first step, steps of one token and of several, and one that
    /// writes the last slot.
    pub(super) fn all(slots: usize) -> impl Iterator<Item = Self> {
        let last = slots.saturating_sub(1);
        let steps = [(2, 0, 3), (1, 3, 1), (3, 2, 2), (1, last.div_ceil(2), 1), (1, last, 1)];
        let steps = steps.map(|(batch, past, new)| Self { batch, past, new });
        steps.into_iter().filter(move |step| step.past.saturating_add(step.new) <= slots)
    }

    /// Feeds the inputs of the step. `stacked` have all layers, and `offset` is the number of tokens so far.
    pub(super) fn feed(
        &self,
        inputs: &[ValueInfo<'_>],
        stacked: &[&ValueInfo<'_>],
        offset: &ValueInfo<'_>,
        fold: &mut Fold<'_>,
    ) -> Result<(), OnnxError> {
        let batch = stacked.first().and_then(|input| input.shape.as_ref()?.get(1)).copied();
        for input in inputs {
            let is_tokens = |axis| axis == 1 && input.rank() == Some(2);
            let size = |(axis, dim): (usize, &Dimension<'_>)| match dim.size() {
                Some(size) => size,
                None if Some(*dim) == batch => self.batch,
                None if is_tokens(axis) => self.new,
                None => OTHER,
            };
            let shape: Vec<_> = input.shape.iter().flatten().enumerate().map(size).collect();
            let value = match input.name == offset.name {
                true => Value { element: input.element, shape, ..Value::ints(vec![signed(self.past)])? },
                false => Value::shaped(input.element, shape)?,
            };
            fold.set(input.name, value)?;
        }
        Ok(())
    }

    /// Checks the rows that the nodes of a layer read and write. Removes the values of
    /// [`Layer::split`] that do not split all slots in one way, and sets [`Layer::heads`].
    pub(super) fn check<'m>(
        &self,
        graph: &Graph<'m>,
        index: usize,
        layer: &mut Layer<'m>,
        fold: &mut Fold<'m>,
    ) -> Result<(), OnnxError> {
        let Self { batch, past, new } = *self;
        let refused = |node: &Node<'_>, reason| refused(node, layer.stack, reason);
        let all = past.saturating_add(new);
        let slots = fold.shape(layer.slots.output(0).unwrap_or_default())?.to_vec();
        let &[samples, count, width] = slots.as_slice() else {
            return Err(refused(&layer.slots, "the layer is not [batch, slots, width]"));
        };
        // A slice from 0 in steps of 1 along the slots. A start that is computed might be another number in other
        // steps.
        if !layer.slots.input(1).is_some_and(|start| graph.is_constant(start)) {
            return Err(refused(&layer.slots, NOT_SLICED));
        }
        let axes = layer.slots.sliced_axes(|bound| fold.ints(bound));
        let is_from_first =
            matches!(axes.as_deref(), Some([SlicedAxis { axis: AXIS, start: Some(0), step: Some(1), .. }]));
        if !is_from_first || (samples, count) != (batch, all) {
            return Err(refused(&layer.slots, NOT_SLICED));
        }
        let written = Rows { layer: None, shape: [batch, new, width], first: past };
        if fold.shape(layer.rows)? != written.shape || !written.are_at(&layer.writer, fold)? {
            return Err(refused(&layer.writer, "this node does not write the new rows after the old ones"));
        }
        let (back, passed) = &layer.back;
        let returned = Rows { layer: Some(index), shape: [batch, all, width], first: 0 };
        if !returned.are_at(back, fold)? {
            return Err(refused(back, "this node does not write the layer back"));
        }
        layer.split.retain(|value| {
            let Ok(&[samples, slots, heads, size]) = fold.shape(value) else { return false };
            let is_whole = (samples, slots) == (batch, all) && heads.checked_mul(size) == Some(width);
            is_whole && *layer.heads.get_or_insert([heads, size]) == [heads, size]
        });
        for (values, rows, node) in [(&layer.passed, written, &layer.writer), (passed, returned, back)] {
            for value in values {
                if elements(fold.shape(value)?) != elements(&rows.shape) {
                    return Err(refused(node, "this node does not write whole rows"));
                }
            }
        }
        Ok(())
    }
}

/// Rows of a cache, in row-major order.
struct Rows {
    /// The index of the layer if the cache has all layers.
    layer: Option<usize>,
    /// The numbers of samples and of rows, and the size of a row.
    shape: [usize; 3],
    /// The slot of the first row.
    first: usize,
}

impl Rows {
    /// Returns `true` if the indices of a scatter are those of the rows, or of their elements.
    fn are_at(&self, writer: &Node<'_>, fold: &mut Fold<'_>) -> Result<bool, OnnxError> {
        let index = fold.value(writer.input(1).unwrap_or_default())?;
        let (Some(numbers), Some(&depth)) = (index.as_ints(), index.shape.last()) else { return Ok(false) };
        let [samples, rows, width] = self.shape;
        let own = depth.saturating_sub(usize::from(self.layer.is_some()));
        let width = match own {
            2 => 1,
            3 => width,
            _ => return Ok(false),
        };
        let expected = (0..samples).flat_map(|sample| {
            let places = (0..rows).flat_map(move |row| (0..width).map(move |column| (row, column)));
            places.flat_map(move |(row, column)| {
                let place = [sample, self.first.saturating_add(row), column];
                self.layer.into_iter().chain(place.into_iter().take(own)).map(signed)
            })
        });
        Ok(expected.eq(numbers.iter().copied()) && writer.attribute("reduction").is_none())
    }
}
