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
    /// Returns a part of the run, by the distance from its first slot.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        let slots = self.slots.start + part.start..self.slots.start + part.end;
        Self { index: self.index + part.start, is_past: self.is_past, slots }
    }

    /// Returns the parts between indices that are multiples of `step`. None of them is empty.
    pub(crate) fn cut(&self, step: usize) -> impl Iterator<Item = Self> {
        let end = self.index + self.slots.len();
        let numbers = if self.slots.is_empty() { 0..0 } else { self.index / step..end.div_ceil(step) };
        numbers.map(move |number| {
            let (start, end) =
                ((number * step).max(self.index), (number * step).saturating_add(step).min(end));
            self.part(start - self.index..end - self.index)
        })
    }
}
