//! The mask that is added to the scores.

use core::ops::Range;

use crate::error::AttentionError;
use crate::float::Float;

/// The values of a mask.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a, T> {
    /// Hides the slots where the byte is 0.
    Bool(&'a [u8]),
    /// Adds the number to the score. Negative infinity hides the slot. The type's lowest value also hides it,
    /// unless it is the number of every slot that the other rules leave to the query.
    Float(&'a [T]),
}

impl<T: Float> Mask<'_, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bool(seen) => seen.len(),
            Self::Float(added) => added.len(),
        }
    }

    /// Writes the numbers that a row of a mask adds to scores, from the slot `first` on. Hides the slots after
    /// the end of the mask, and if `hides_lowest`, those with the lowest number.
    pub(crate) fn fill(&self, first: usize, hides_lowest: bool, bias: &mut [f32]) {
        match self {
            Self::Bool(seen) => {
                let seen = seen.get(first..).unwrap_or(&[]).iter().map(|seen| *seen != 0);
                for (bias, is_seen) in bias.iter_mut().zip(seen.chain(core::iter::repeat(false))) {
                    *bias = if is_seen { 0.0 } else { f32::NEG_INFINITY };
                }
            }
            Self::Float(added) => {
                let lowest = if hides_lowest { T::LOWEST.to_f32() } else { f32::NEG_INFINITY };
                let added = added.get(first..).unwrap_or(&[]).iter().map(|added| added.to_f32());
                for (bias, added) in bias.iter_mut().zip(added.chain(core::iter::repeat(f32::NEG_INFINITY))) {
                    *bias = if added <= lowest { f32::NEG_INFINITY } else { added };
                }
            }
        }
    }

    /// Returns the first of these slots that a row of a mask shows, or hides if `seen` is `false`. The slots after the
    /// end of the mask are not searched.
    pub(crate) fn first(&self, slots: Range<usize>, seen: bool, hides_lowest: bool) -> Option<usize> {
        match self {
            Self::Bool(row) => first(row, slots, |byte| (*byte != 0) == seen),
            Self::Float(row) => first(row, slots, |added| added.is_hidden(hides_lowest) != seen),
        }
    }

    /// Returns the last of these slots that a row of a mask shows, or hides if `seen` is `false`. The slots after the
    /// end of the mask are not searched.
    pub(crate) fn last(&self, slots: Range<usize>, seen: bool, hides_lowest: bool) -> Option<usize> {
        match self {
            Self::Bool(row) => last(row, slots, |byte| (*byte != 0) == seen),
            Self::Float(row) => last(row, slots, |added| added.is_hidden(hides_lowest) != seen),
        }
    }

    /// Returns `true` if a row of a mask adds 0 to the score of each of these slots.
    pub(crate) fn is_zero(&self, slots: Range<usize>) -> bool {
        match self {
            // The smallest byte is computed without an early exit, which is faster for many slots.
            Self::Bool(seen) => seen
                .get(slots)
                .is_some_and(|seen| seen.iter().fold(u8::MAX, |least, seen| least.min(*seen)) != 0),
            Self::Float(added) => {
                added.get(slots).is_some_and(|added| added.iter().all(|added| added.to_f32() == 0.0))
            }
        }
    }

    /// Returns `true` if a row of a mask has the lowest number at this slot.
    pub(crate) fn is_lowest(&self, slot: usize) -> bool {
        let Self::Float(added) = self else { return false };
        added.get(slot).is_some_and(|added| added.to_f32() == T::LOWEST.to_f32())
    }

    /// Returns `true` if a row of a mask of numbers has one above the lowest for any of these slots.
    pub(crate) fn has_a_slot(&self, slots: Range<usize>) -> bool {
        let Self::Float(added) = self else { return true };
        let slots = slots.start.min(added.len())..slots.end.min(added.len());
        added[slots]
            .iter()
            .map(|added| added.to_f32())
            .any(|added| added > T::LOWEST.to_f32() || added.is_nan())
    }
}

/// The number of elements that are searched without an early exit, which is faster for many elements.
const SEARCHED: usize = 64;

fn first<E>(row: &[E], slots: Range<usize>, matches: impl Fn(&E) -> bool) -> Option<usize> {
    let row = row.get(..slots.end).unwrap_or(row).get(slots.start..)?;
    let has_match = |block: &&[E]| block.iter().fold(false, |any, element| any | matches(element));
    let (at, block) = row.chunks(SEARCHED).enumerate().find(|(_, block)| has_match(block))?;
    Some(slots.start + at * SEARCHED + block.iter().position(matches)?)
}

fn last<E>(row: &[E], slots: Range<usize>, matches: impl Fn(&E) -> bool) -> Option<usize> {
    let row = row.get(..slots.end).unwrap_or(row).get(slots.start..)?;
    let has_match = |block: &&[E]| block.iter().fold(false, |any, element| any | matches(element));
    let (at, block) = row.rchunks(SEARCHED).enumerate().find(|(_, block)| has_match(block))?;
    let start = slots.start + row.len() - at * SEARCHED - block.len();
    Some(start + block.iter().rposition(matches)?)
}

/// The shape of a mask, which broadcasts to `[batch, query heads, queries, keys]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaskLayout {
    /// The number of slots that the mask covers. It hides the slots after them.
    keys: usize,
    /// The strides of batch, query heads and queries in elements, 0 for an axis that is missing or 1.
    strides: [usize; 3],
    pub(crate) len: usize,
}

impl MaskLayout {
    /// Checks the shape of a mask.
    ///
    /// # Errors
    /// Returns an error for a shape that does not broadcast to `expected`.
    pub(crate) fn new(shape: &[usize], expected: [usize; 4]) -> Result<Self, AttentionError> {
        let refused = || AttentionError::MaskShape { got: shape.to_vec(), expected };
        let [outer @ .., keys] = shape else { return Err(refused()) };
        // The last axis does not broadcast. If it is 1, it covers one slot.
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
            step = step.checked_mul(dim).ok_or_else(refused)?;
        }
        Ok(Self { keys: *keys, strides, len: step })
    }

    /// Returns whether the heads of a sample may have different masks.
    pub(crate) fn differs_by_head(&self) -> bool {
        self.strides[1] != 0
    }

    /// Returns the elements of a mask for one query, at most `keys`.
    pub(crate) fn row<'a, T: Float>(&self, mask: Mask<'a, T>, at: [usize; 3]) -> Mask<'a, T> {
        let first: usize = at.iter().zip(self.strides).map(|(index, stride)| index * stride).sum();
        match mask {
            Mask::Bool(seen) => Mask::Bool(&seen[first..first + self.keys]),
            Mask::Float(added) => Mask::Float(&added[first..first + self.keys]),
        }
    }
}
