//! The rows of a cache in memory. A row contains the elements of one slot of one sample.

use std::ops::Range;

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Mode};

use crate::interface::{CachePort, EncoderPort};

/// The layout of a dense cache's rows: `batch × outer × capacity` runs of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    outer: usize,
    mode: Mode,
    capacity: usize,
    /// The bytes of one run. A row has `outer` runs.
    run: usize,
}

impl Rows {
    /// Computes the layout of a cache for samples of this many tokens. All dimensions except batch and sequence must be
    /// known.
    #[must_use]
    pub fn new(cache: &CachePort, capacity: usize) -> Self {
        let mode = if cache.ring.is_some() { Mode::Circular } else { Mode::Linear };
        Self { mode, ..Self::linear(&cache.dims, cache.axis, cache.element, cache.slots(capacity)) }
    }

    /// Computes the layout of an input from an encoder, whose rows are the positions of the encoder.
    pub(crate) fn of_encoder(port: &EncoderPort, length: usize) -> Self {
        Self::linear(&port.dims, port.axis, port.element, length)
    }

    fn linear(dims: &[Option<usize>], axis: usize, element: ElementType, capacity: usize) -> Self {
        let product =
            |dims: &[Option<usize>]| dims.iter().map(|dim| dim.unwrap_or_default()).product::<usize>();
        let outer = dims.get(1..axis).map_or(1, product);
        let inner = dims.get(axis.saturating_add(1)..).map_or(1, product);
        let width = element.bits().unwrap_or_default() / 8;
        Self { outer, mode: Mode::Linear, capacity, run: inner * width }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn capacity(self) -> usize {
        self.capacity
    }

    /// Returns the slots of consecutive positions, in order. The second range is empty unless a ring wraps.
    #[must_use]
    pub fn slots(self, positions: Range<usize>) -> [Range<usize>; 2] {
        let [start, end] =
            [positions.start, positions.end].map(|position| i64::try_from(position).unwrap_or(i64::MAX));
        Visibility::new(self.mode, self.capacity).slots(start..end)
    }

    /// Returns the number of bytes of one row.
    #[must_use]
    pub fn row(self) -> usize {
        self.outer * self.run
    }

    /// Returns the slots among `slots` at which `sample` has different rows in `a` and `b`, in order.
    #[must_use]
    pub fn differing(self, sample: usize, slots: Range<usize>, a: &[u8], b: &[u8]) -> Vec<usize> {
        let mut differ = vec![false; slots.len()];
        for outer in 0..self.outer {
            let all = self.run_at(sample, outer, slots.clone());
            // All rows are first compared at once, because most rows are equal.
            if a.get(all.clone()) == b.get(all) {
                continue;
            }
            for (slot, differs) in slots.clone().zip(&mut differ) {
                let run = self.run_at(sample, outer, slot..slot + 1);
                *differs |= a.get(run.clone()) != b.get(run);
            }
        }
        slots.zip(differ).filter(|(_, differs)| *differs).map(|(slot, _)| slot).collect()
    }

    /// Returns the byte ranges of a sample's rows at these positions, in order.
    pub fn runs(self, sample: usize, positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let slots = self.slots(positions);
        (0..self.outer)
            .flat_map(move |outer| slots.clone().map(|slots| self.run_at(sample, outer, slots)))
            .filter(|run| !run.is_empty())
    }

    fn run_at(self, sample: usize, outer: usize, slots: Range<usize>) -> Range<usize> {
        let first = (sample * self.outer + outer) * self.capacity;
        (first + slots.start) * self.run..(first + slots.end) * self.run
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::Rows;
    use crate::interface::tests::port;

    #[test]
    fn a_row_of_four_dimensions_is_a_run_in_every_head() {
        let cache = port(ElementType::Float16, &[None, Some(3), Some(5), Some(4)]);
        let rows = Rows::new(&cache, 5);
        assert_eq!((rows.row(), rows.capacity()), (3 * 4 * 2, 5));
        let before = vec![0_u8; 2 * 3 * 5 * 4 * 2];
        for (sample, head, slot) in [(0, 0, 0), (1, 2, 4), (1, 0, 2)] {
            let mut after = before.clone();
            let element = ((sample * 3 + head) * 5 + slot) * 4 + 3;
            after[element * 2 + 1] = 1;
            for other in 0..2 {
                let expected = if other == sample { vec![slot] } else { vec![] };
                assert_eq!(rows.differing(other, 0..5, &before, &after), expected, "{sample} {head} {slot}");
            }
            let row: Vec<usize> = rows.runs(sample, slot..slot + 1).flatten().collect();
            assert!(row.contains(&(element * 2 + 1)));
            assert_eq!(row.len(), rows.row());
        }
    }
}
