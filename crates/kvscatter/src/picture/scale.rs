//! Converts slots to columns of text or pixels, and chooses the numbers on a ruler.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use core::{fmt, iter};

use super::words::{digits, plural};

/// A scale with a whole number of columns per slot or of slots per column.
///
/// All slots have the same size, and so have all columns, except that the last column may stand for fewer
/// slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    capacity: usize,
    columns_per_slot: usize,
    slots_per_column: usize,
}

/// Writes the scale for a legend, such as `4 columns = 1 slot`.
impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { columns_per_slot: columns, slots_per_column: slots, .. } = *self;
        write!(f, "{columns} column{} = {slots} slot{}", plural(columns), plural(slots))
    }
}

impl Scale {
    /// Creates a scale with at most `columns` for the whole capacity and at most `widest` for one slot.
    pub(super) fn new(capacity: usize, columns: usize, widest: usize) -> Self {
        let columns = columns.max(2); // so that both runs of a ring have a column
        let columns_per_slot = columns.checked_div(capacity).unwrap_or(1).clamp(1, widest.max(1));
        Self { capacity, columns_per_slot, slots_per_column: capacity.div_ceil(columns).max(1) }
    }

    pub(super) const fn columns_per_slot(self) -> usize {
        self.columns_per_slot
    }

    /// Returns the number of columns of the whole capacity.
    pub(super) fn columns(self) -> usize {
        self.columns_of(&(0..self.capacity)).end
    }

    /// Returns the columns of a run. A run with at least one slot has at least one column.
    pub(super) fn columns_of(self, slots: &Range<usize>) -> Range<usize> {
        let Range { start, end } = *slots;
        let start = start.min(self.capacity);
        let end = end.clamp(start, self.capacity);
        let start = start.checked_div(self.slots_per_column).unwrap_or(0);
        let scaled = |column: usize| column.saturating_mul(self.columns_per_slot);
        scaled(start)..scaled(end.div_ceil(self.slots_per_column))
    }

    /// Returns the slots that a column stands for.
    pub(super) fn slots_of(self, column: usize) -> Range<usize> {
        let column = column.checked_div(self.columns_per_slot).unwrap_or(0);
        let start = column.saturating_mul(self.slots_per_column);
        start..start.saturating_add(self.slots_per_column).min(self.capacity)
    }

    /// Returns the slots whose numbers fit on a ruler, and the column of each.
    ///
    /// These slots are multiples of a power of two, and the last slot. `advance` is the number of columns of
    /// one digit.
    pub(super) fn ticks(self, advance: usize) -> Vec<(usize, usize)> {
        let Some(last) = self.capacity.checked_sub(1) else { return Vec::new() };
        let tick = |slot: usize| (slot, self.columns_of(&(slot..slot.saturating_add(1))).start);
        let room = digits(last).saturating_add(2).saturating_mul(advance);
        let step = (0..usize::BITS)
            .filter_map(|power| 1_usize.checked_shl(power))
            .find(|&step| tick(step).1 >= room)
            .unwrap_or(self.capacity);
        let (last, end) = tick(last);
        let mut ticks: Vec<_> = (0..last)
            .step_by(step)
            .map(tick)
            .filter(|(_, column)| column.saturating_add(room) <= end)
            .collect();
        ticks.push((last, end));
        ticks
    }

    /// Returns the two lines of a ruler for text: the numbers of the slots and their ticks.
    pub(super) fn ruler(self, ascii: bool) -> (String, String) {
        let tick = if ascii { '|' } else { '╷' };
        let (mut numbers, mut marks, mut end) = (String::new(), String::new(), 0);
        for (slot, column) in self.ticks(1) {
            numbers.extend(iter::repeat_n(' ', column.saturating_sub(numbers.len())));
            marks.extend(iter::repeat_n(' ', column.saturating_sub(end)));
            numbers.push_str(&slot.to_string());
            marks.push(tick);
            end = column.saturating_add(1);
        }
        (numbers, marks)
    }
}

#[cfg(test)]
mod tests {
    use super::Scale;

    #[test]
    fn every_slot_has_a_column_and_every_column_a_slot() {
        for capacity in 1..=70 {
            for width in 0..=40 {
                let scale = Scale::new(capacity, width, 4);
                assert!((1..=width.max(2)).contains(&scale.columns()), "{scale:?}");
                for slot in 0..capacity {
                    let columns = scale.columns_of(&(slot..slot + 1));
                    assert!(!columns.is_empty() && columns.end <= scale.columns(), "{scale:?} {slot}");
                    assert!(columns.into_iter().all(|column| scale.slots_of(column).contains(&slot)));
                }
                for column in 0..scale.columns() {
                    assert!(!scale.slots_of(column).is_empty(), "{scale:?} {column}");
                }
            }
        }
    }

    #[test]
    fn numbers_on_a_ruler_never_touch() {
        for capacity in (1..300).chain([4096, 1 << 20, usize::MAX]) {
            for (width, advance) in [(2, 1), (40, 1), (80, 1), (800, 8)] {
                let ticks = Scale::new(capacity, width, 4 * advance).ticks(advance);
                assert_eq!(ticks.last().map(|&(slot, _)| slot), Some(capacity - 1));
                for pair in ticks.windows(2) {
                    let end = pair[0].1 + super::digits(pair[0].0) * advance;
                    assert!(end + advance <= pair[1].1, "{capacity} {width} {pair:?}");
                }
            }
        }
        assert_eq!(Scale::new(0, 80, 4).ticks(1), []);
    }

    #[test]
    fn an_empty_cache_has_no_columns() {
        assert_eq!(Scale::new(0, 80, 4).columns(), 0);
    }
}
