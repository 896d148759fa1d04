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

    /// Returns the slots of the run with these indices, which may be none.
    pub(crate) fn within(&self, indices: &Range<usize>) -> Self {
        let start = indices.start.clamp(self.index, self.end());
        let end = indices.end.clamp(start, self.end());
        self.slice(start - self.index..end - self.index)
    }

    /// Returns the slots at these distances from the first slot of the run.
    pub(crate) fn slice(&self, distances: Range<usize>) -> Self {
        let slots = self.slots.start + distances.start..self.slots.start + distances.end;
        Self { index: self.index + distances.start, is_past: self.is_past, slots }
    }
}
