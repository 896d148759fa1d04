//! The mask that is added to the scores of a query.

use std::ops::Range;

use super::float::Float;

/// A mask over `[batch, query heads, queries, keys]`. Its first three axes may be missing or 1. Keys beyond
/// its end are masked.
#[derive(Clone, Copy)]
pub(super) struct Mask<'a, T> {
    values: Values<'a, T>,
    keys: usize,
    /// The strides of the first three axes in elements, 0 for an axis that is missing or 1.
    strides: [usize; 3],
}

/// The values of a mask. A boolean keeps or masks a key, and a number is added to its score.
#[derive(Clone, Copy)]
pub(super) enum Values<'a, T> {
    Seen(&'a [bool]),
    Added(&'a [T]),
}

impl<'a, T: Float> Mask<'a, T> {
    /// Creates a mask.
    ///
    /// # Errors
    /// Returns a message for a shape that does not broadcast to `[batch, query heads, queries, total]`.
    pub(super) fn new(values: Values<'a, T>, shape: &[usize], expected: [usize; 4]) -> Result<Self, String> {
        let refused = || format!("attn_mask of shape {shape:?} does not broadcast to {expected:?}");
        let [outer @ .., keys] = shape else { return Err(refused()) };
        if outer.len() > 3 || *keys > expected[3] {
            return Err(refused());
        }
        let mut strides = [0; 3];
        let mut step = *keys;
        for (axis, &dim) in (0..3).rev().zip(outer.iter().rev()) {
            if dim != 1 && dim != expected[axis] {
                return Err(refused());
            }
            strides[axis] = if dim == 1 { 0 } else { step };
            step *= dim;
        }
        Ok(Self { values, keys: *keys, strides })
    }

    /// Writes the numbers that are added to the scores of these keys, with negative infinity for masked keys.
    pub(super) fn fill(&self, at: [usize; 3], keys: Range<usize>, bias: &mut [f32]) {
        let first: usize = at.iter().zip(self.strides).map(|(index, stride)| index * stride).sum();
        let there = keys.end.min(self.keys).saturating_sub(keys.start);
        let (known, beyond) = bias.split_at_mut(there);
        beyond.fill(f32::NEG_INFINITY);
        if known.is_empty() {
            return;
        }
        let range = first + keys.start..first + keys.start + there;
        match self.values {
            Values::Seen(seen) => {
                for (bias, seen) in known.iter_mut().zip(&seen[range]) {
                    *bias = if *seen { 0.0 } else { f32::NEG_INFINITY };
                }
            }
            Values::Added(added) => {
                for (bias, added) in known.iter_mut().zip(&added[range]) {
                    *bias = added.to_f32();
                }
            }
        }
    }
}
