//! The positions that the rows of a block see.
//!
//! The rule of visibility shows a range of positions to a row, and the mask hides some of them. The row is computed
//! over the range from the first position that is left to the last one. Chunks begin at the first position of the
//! block. So the order of sums depends on what the rows see, and not on the slots in which it lies.
//!
//! A mask may be that of a ring. It then shows two parts of the cache to a row: the slots after a gap, and the slots
//! from 0 to the gap. The oldest token lies after the gap. The positions of such a row therefore begin after the gap
//! and continue after the last slot with a token, and position `p` lies in slot `p mod tokens`. If the mask shows
//! every token to a row, there is no gap, and the positions of the row begin at slot 0.

use core::ops::Range;

use crate::block::{Block, CallMemory, Row};
use crate::float::Float;
use crate::kernel::CacheElement;
use crate::mask::Mask;
use crate::room::Room;
use crate::setup::Setup;

impl<T: Float, C: CacheElement> CallMemory<'_, T, C> {
    /// Stores the positions that each row of a head sees in `room.seen`, and those of the block in `room.positions`.
    pub(crate) fn find_positions(&self, block: &Block, room: &mut Room) {
        self.find_rows_with_a_slot(block, room);
        room.seen.clear();
        let shares_mask = self.setup.mask.is_some_and(|mask| !mask.differs_by_head());
        for index in block.rows.clone() {
            let is_same = shares_mask && !index.is_multiple_of(self.setup.sizes.group());
            let seen = match room.seen.last() {
                Some(last) if is_same => last.clone(),
                _ => {
                    let hides_lowest = room.has_a_slot.get(room.seen.len()).copied().unwrap_or(false);
                    self.seen(block, index, hides_lowest)
                }
            };
            room.seen.push(seen);
        }
        let turn = self.may_wrap().then_some(block.turn);
        (room.positions, room.has_gaps) = join(&mut room.seen, turn);
        if let Some(turn) = turn.filter(|turn| room.positions.end - room.positions.start > *turn) {
            // The rows do not fit in one turn, so they are computed in the order of slots.
            room.seen.iter_mut().for_each(|seen| *seen = in_first_turn(seen, turn));
            (room.positions, room.has_gaps) = join(&mut room.seen, None);
        }
        // A row that sees nothing may lie outside of the block.
        let start = room.positions.start;
        room.seen.iter_mut().filter(|seen| seen.is_empty()).for_each(|seen| *seen = start..start);
    }

    /// Returns the positions from the first to the last one that a row sees. An output of scores has an element for
    /// every slot, so the mask then leaves all of them.
    fn seen(&self, block: &Block, index: usize, hides_lowest: bool) -> Range<i64> {
        let positions = self.positions_of(block, index);
        let mask = self.mask_of(block, Row { head: block.heads.start, index });
        let Some(mask) = mask.filter(|_| self.setup.op.scores.is_none()) else { return positions };
        let runs = self
            .segments(block.turn, positions.start, &positions)
            .map(|run| (run.index, self.slots_in_mask(&run)));
        let first = runs.iter().find_map(|(index, slots)| {
            mask.first(slots.clone(), true, hides_lowest).map(|slot| index + slot - slots.start)
        });
        let last = runs.iter().rev().find_map(|(index, slots)| {
            mask.last(slots.clone(), true, hides_lowest).map(|slot| index + slot - slots.start)
        });
        let (Some(first), Some(last)) = (first, last) else { return positions.start..positions.start };
        let seen = positions.start + first as i64..positions.start + last as i64 + 1;
        if self.may_wrap() && seen == (0..block.turn) {
            return wrapped(&mask, block.turn, hides_lowest).unwrap_or(seen);
        }
        seen
    }

    /// Returns whether the positions of a row may begin at another slot than 0, if the mask shows it.
    pub(crate) fn may_wrap(&self) -> bool {
        let Setup { op, mask, has_past, .. } = self.setup;
        mask.is_some() && !op.is_ring && !has_past && op.scores.is_none()
    }
}

/// Returns the positions of a row that sees the first and the last slot, or `None` if the mask does not have exactly
/// one gap.
fn wrapped<T: Float>(mask: &Mask<'_, T>, turn: i64, hides_lowest: bool) -> Option<Range<i64>> {
    let slots = 0..turn as usize;
    let (first, last) =
        (mask.first(slots.clone(), false, hides_lowest)?, mask.last(slots, false, hides_lowest)?);
    let has_one_gap = mask.first(first..last, true, hides_lowest).is_none();
    has_one_gap.then_some(last as i64 + 1..first as i64 + turn)
}

/// Returns the positions from the first to the last one of any row, and whether some of them lie in no row.
///
/// A row that begins before the first row is moved by a turn if it continues the rows before it.
fn join(rows: &mut [Range<i64>], turn: Option<i64>) -> (Range<i64>, bool) {
    let mut rows = rows.iter_mut().filter(|row| !row.is_empty());
    let (mut all, mut has_gaps) = (rows.next().map_or(0..0, |row| row.clone()), false);
    for row in rows {
        if let Some(turn) = turn {
            let moved = row.start + turn..row.end + turn;
            if row.start < all.start && moved.start <= all.end && moved.end - all.start <= turn {
                *row = moved;
            }
        }
        has_gaps |= row.start > all.end || row.end < all.start;
        all = all.start.min(row.start)..all.end.max(row.end);
    }
    (all, has_gaps)
}

/// Returns the slots that contain the slots of a row.
fn in_first_turn(row: &Range<i64>, turn: i64) -> Range<i64> {
    let moved = if row.start < turn { row.clone() } else { row.start - turn..row.end - turn };
    if moved.end <= turn { moved } else { 0..turn }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{in_first_turn, join};
    use crate::block::CallMemory;
    use crate::mask::Mask;
    use crate::operands::{Inputs, Outputs, Shapes, Valid};
    use crate::operator::Attention;
    use crate::places::Strides;
    use crate::room::Room;
    use crate::setup::Setup;

    /// Returns the slots that a block of one row for each mask reads, in the order of their positions.
    fn slots_read(rows: &[&[u8]], tokens: usize) -> Vec<usize> {
        let (queries, slots) = (rows.len(), rows[0].len());
        let shapes = Shapes {
            element: ElementType::Float32,
            query: &[1, 1, queries, 1],
            key: &[1, 1, slots, 1],
            value: &[1, 1, slots, 1],
            mask: Some(&[queries, slots]),
            past: None,
        };
        let setup = Setup::new(Attention::new(), &shapes, &Strides::default()).unwrap();
        let (cache, query, mask) = (vec![1.0_f32; slots], vec![1.0; queries], rows.concat());
        let mask = Some(Mask::Bool(&mask));
        let valid = [tokens as i64];
        let valid = Valid::Lengths(&valid);
        let inputs = Inputs { mask, valid, ..Inputs::new(&query, &cache, &cache) };
        let (mut output, mut room) = (vec![0.0; queries], Room::new(&setup));
        let mut outputs = Outputs::new(&mut output);
        let call = CallMemory::new(&setup, &inputs, &mut outputs);
        let block = call.block(0);
        call.start(&block, &mut room);
        let chunks = 0..call.chunks(&room.positions);
        let read = chunks.flat_map(|number| {
            call.chunk(&block, number, &mut room);
            room.runs.iter().flat_map(|run| run.slots.clone()).collect::<Vec<_>>()
        });
        read.collect()
    }

    #[test]
    fn rows_that_touch_have_no_gap() {
        let joined = |mut rows: Vec<std::ops::Range<i64>>| join(&mut rows, None);
        assert_eq!(joined(vec![0..2, 2..4]), (0..4, false));
        assert_eq!(joined(vec![2..4, 0..2]), (0..4, false));
        assert_eq!(joined(vec![0..2, 3..4]), (0..4, true));
        assert_eq!(joined(vec![3..4, 0..2]), (0..4, true));
        assert_eq!(joined(vec![5..5, 1..3]), (1..3, false));
    }

    #[test]
    fn slots_of_a_row_lie_in_the_first_turn() {
        for (row, expected) in [(3..5, 3..5), (10..12, 2..4), (8..9, 0..1), (6..10, 0..8), (15..17, 0..8)] {
            assert_eq!(in_first_turn(&row, 8), expected, "{row:?}");
        }
    }

    /// Returns a mask that shows `count` slots from `start` on, around the end.
    fn window(slots: usize, start: usize, count: usize) -> Vec<u8> {
        (0..slots).map(|slot| u8::from((slot + slots - start) % slots < count)).collect()
    }

    #[test]
    fn the_slots_of_windows_are_read_from_the_oldest_on() {
        let slots = 2100;
        for (window_size, queries) in [(1, 1), (512, 1), (512, 3), (1500, 16), (2085, 16), (2099, 2)] {
            for start in [0, 1, 600, 1599, 2083, 2098, 2099] {
                let rows: Vec<_> =
                    (0..queries).map(|query| window(slots, (start + query) % slots, window_size)).collect();
                let rows: Vec<_> = rows.iter().map(Vec::as_slice).collect();
                let expected = (start..start + window_size + queries - 1).map(|position| position % slots);
                assert_eq!(slots_read(&rows, slots), expected.collect::<Vec<_>>(), "{window_size} {start}");
            }
        }
        // Without a gap, the order is that of the slots.
        assert_eq!(slots_read(&[&window(5, 3, 5)], 5), [0, 1, 2, 3, 4]);
        // The slots of a cache with fewer tokens than slots wrap around the last token.
        assert_eq!(slots_read(&[&[1, 0, 1, 0, 0]], 3), [2, 0]);
        assert_eq!(slots_read(&[&[1, 0, 1, 1, 0]], 5), [0, 2, 3]);
    }

    #[test]
    fn only_slots_that_a_row_sees_are_read() {
        let mut state = 1_usize;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for _ in 0..3000 {
            let (slots, queries) = (1 + below(40), 1 + below(5));
            let has_holes = below(3) == 0;
            let rows: Vec<Vec<u8>> = (0..queries)
                .map(|_| match has_holes {
                    true => (0..slots).map(|_| below(2) as u8).collect(),
                    false => window(slots, below(slots), below(slots + 1)),
                })
                .collect();
            let tokens = if below(2) == 0 { slots } else { below(slots + 1) };
            let refs: Vec<_> = rows.iter().map(Vec::as_slice).collect();
            let mut read = slots_read(&refs, tokens);
            read.sort_unstable();
            let seen: Vec<_> = (0..tokens).filter(|slot| rows.iter().any(|row| row[*slot] != 0)).collect();
            assert_eq!(read, seen, "{rows:?} {tokens}");
        }
    }
}
