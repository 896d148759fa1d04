//! The slots of a chunk that are read.

use core::ops::Range;

use kvscatter::Mode;
use kvscatter::visibility::Visibility;

use crate::block::{Block, CallMemory, Row};
use crate::float::Float;
use crate::kernel::CacheElement;
use crate::mask::Mask;
use crate::room::Room;
use crate::sizes::Blocks;
use crate::slots::Slots;

impl<T: Float, C: CacheElement> CallMemory<'_, T, C> {
    /// Stores the runs of positions that any row of the block sees in `room.runs`, and the mask of the chunk in
    /// `room.bias` if it changes a score.
    pub(crate) fn find_runs(&self, block: &Block, base: i64, positions: &Range<i64>, room: &mut Room) {
        room.runs.clear();
        let segments = self.segments(block.turn, base, positions);
        room.has_bias = self.setup.mask.is_some()
            && (room.has_gaps || self.changes_scores(block, base, &segments, &room.seen));
        if !room.has_bias {
            room.runs.extend(segments.into_iter().filter(|run| !run.slots.is_empty()));
            return;
        }
        let section = self.setup.blocking.section;
        let (rows, of_head) = (block.heads.len() * block.rows.len(), block.rows.len());
        for (at, row) in block.each().enumerate() {
            let bias = &mut room.bias[at * section..][..section];
            bias.fill(f32::NEG_INFINITY);
            let Some(mask) = self.mask_of(block, row) else { continue };
            let visible = self.indices(base, &room.seen[at % of_head]);
            let hides_lowest = room.has_a_slot.get(at).copied().unwrap_or(false);
            for run in segments.iter().map(|run| run.within(&visible)) {
                let in_mask = self.slots_in_mask(&run);
                mask.fill(in_mask.start, hides_lowest, &mut bias[run.index..run.end()]);
            }
        }
        for run in segments {
            let mut start = None;
            for offset in 0..=run.slots.len() {
                let is_seen = offset < run.slots.len()
                    && (0..rows).any(|at| room.bias[at * section + run.index + offset] != f32::NEG_INFINITY);
                match (start, is_seen) {
                    (None, true) => start = Some(offset),
                    (Some(first), false) => {
                        room.runs.push(run.slice(first..offset));
                        start = None;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns `true` if the mask hides one of the positions in `seen` from its row, or adds a number other than 0.
    /// All heads of a block have the same mask.
    ///
    /// A mask often shows all slots in use, as that of a decode step does. It then costs only this check.
    fn changes_scores(&self, block: &Block, base: i64, segments: &[Slots], seen: &[Range<i64>]) -> bool {
        let head = block.heads.start;
        block.rows.clone().zip(seen).any(|(index, seen)| {
            let Some(mask) = self.mask_of(block, Row { head, index }) else { return false };
            let visible = self.indices(base, seen);
            let mut runs = segments.iter().map(|run| self.slots_in_mask(&run.within(&visible)));
            runs.any(|slots| !slots.is_empty() && !mask.is_zero(slots))
        })
    }

    /// Returns the parts of a run that are in one block each, with the slots counted from block 0. Without blocks, the
    /// run is one part.
    pub(crate) fn parts<'r>(&'r self, sample: usize, run: &'r Slots) -> impl Iterator<Item = Slots> + 'r {
        let blocks = self.inputs.block_table.zip(self.setup.sizes.blocks);
        let mut slots = run.slots.clone();
        core::iter::from_fn(move || {
            if slots.is_empty() {
                return None;
            }
            let index = run.index + slots.start - run.slots.start;
            let Some((table, Blocks { size, per_sample, .. })) = blocks else {
                let all = core::mem::take(&mut slots);
                return Some(Slots { index, slots: all, ..*run });
            };
            // `check_blocks` has checked the blocks of all positions that are seen.
            let block = table[sample * per_sample + slots.start / size] as usize;
            let (first, count) = (slots.start % size, slots.len().min(size - slots.start % size));
            slots.start += count;
            let first = block * size + first;
            Some(Slots { index, slots: first..first + count, ..*run })
        })
    }

    /// Records which rows see a slot that a mask of numbers does not hide with the lowest one.
    ///
    /// A runtime adds the lowest number to a score, which absorbs the score. So the slots that it hides have
    /// the weight 0 if there is any other slot, and equal weights if there is none.
    pub(crate) fn find_rows_with_a_slot(&self, block: &Block, room: &mut Room) {
        room.has_a_slot.clear();
        if !matches!(self.inputs.mask, Some(Mask::Float(_))) {
            return;
        }
        room.has_a_slot.extend(block.each().map(|row| {
            let mask = self.mask_of(block, row);
            let positions = self.positions_of(block, row.index);
            let segments = self.segments(block.turn, 0, &positions);
            mask.is_some_and(|mask| segments.iter().any(|run| mask.has_a_slot(self.slots_in_mask(run))))
        }));
    }

    /// Returns the slots of consecutive positions, which repeat after `turn` positions. The indices count from the
    /// position `base`.
    pub(crate) fn segments(&self, turn: i64, base: i64, positions: &Range<i64>) -> [Slots; 2] {
        let index = (positions.start - base) as usize;
        if self.setup.has_past {
            let past = self.setup.sizes.past;
            let (start, end) = (positions.start as usize, positions.end as usize);
            let split = past.clamp(start, end);
            return [
                Slots { index, is_past: true, slots: start..split },
                Slots {
                    index: index + split - start,
                    is_past: false,
                    slots: split - past.min(split)..end - past.min(end),
                },
            ];
        }
        let [first, second] = Visibility::new(Mode::Circular, turn as usize).slots(positions.clone());
        let index_of_second = index + first.len();
        [
            Slots { index, is_past: false, slots: first },
            Slots { index: index_of_second, is_past: false, slots: second },
        ]
    }

    /// Returns the indices of a run's slots in the last dimension of a mask.
    pub(crate) fn slots_in_mask(&self, run: &Slots) -> Range<usize> {
        let before = if run.is_past { 0 } else { self.setup.sizes.past };
        before + run.slots.start..before + run.slots.end
    }
}
