//! Consecutive slots.

use core::ops::Range;

/// Consecutive positions of a chunk in consecutive slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The index of the first position in the chunk.
    pub(crate) index: usize,
    pub(crate) is_past: bool,
    pub(crate) slots: Range<usize>,
}

impl Slots {
    /// Returns the index after the last one.
    pub(crate) fn end(&self) -> usize {
        self.index + self.slots.len()
    }

    /// Returns the part of the run with these indices, which may be empty.
    pub(crate) fn within(&self, indices: &Range<usize>) -> Self {
        let start = indices.start.clamp(self.index, self.end());
        let end = indices.end.clamp(start, self.end());
        self.part(start - self.index..end - self.index)
    }

    /// Returns a part of the run, by the distance from its first slot.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        let slots = self.slots.start + part.start..self.slots.start + part.end;
        Self { index: self.index + part.start, is_past: self.is_past, slots }
    }
}
