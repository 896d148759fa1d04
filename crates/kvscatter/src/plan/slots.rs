//! The slots of a paged cache, one for each token of the update.
//!
//! Tokens whose slots follow each other form a run. A run moves at once, except where it crosses the end of a
//! block.
//!
//! The crate documentation defines G1 and P2.

use alloc::vec::Vec;

use crate::geometry::RowRange;

/// Runs of tokens whose slots follow each other, in the order of the tokens. Tokens without a slot are left
/// out.
#[derive(Clone, Debug)]
pub(super) struct SlotRuns<S> {
    slot_of: S,
    token: usize,
    tokens: usize,
}

/// Tokens whose slots follow each other. Slots are counted over all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRun {
    /// The first token.
    pub(super) token: usize,
    /// The slot of the first token.
    pub(super) slot: usize,
    /// The number of tokens.
    pub(super) count: usize,
}

/// A token whose slot an earlier token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Duplicate {
    pub(super) token: usize,
    pub(super) earlier: usize,
}

impl<S: Fn(usize) -> Option<usize>> SlotRuns<S> {
    /// Creates the runs of the first `tokens` tokens. `slot_of` returns the slot of a token, which is less
    /// than the number of slots of a cache.
    #[inline(always)]
    pub(super) fn new(tokens: usize, slot_of: S) -> Self {
        Self { slot_of, token: 0, tokens }
    }

    /// Returns the first token whose slot an earlier token has.
    #[cold]
    pub(super) fn first_duplicate(&self) -> Option<Duplicate> {
        let slots = (0..self.tokens).filter_map(|token| Some(((self.slot_of)(token)?, token)));
        let mut slots: Vec<_> = slots.collect();
        slots.sort_unstable();
        let neighbours = slots.iter().zip(slots.iter().skip(1));
        let equal = neighbours.filter(|((slot, _), (next, _))| slot == next);
        equal
            .map(|((_, earlier), (_, token))| Duplicate { token: *token, earlier: *earlier })
            .min_by_key(|duplicate| duplicate.token)
    }
}

impl<S: Fn(usize) -> Option<usize> + Clone> SlotRuns<S> {
    /// Returns `true` if two tokens have the same slot.
    ///
    /// Runs are compared by their slots. Up to [`ON_STACK`] runs are sorted without an allocation. More runs
    /// are collected into a vector, unless they are in the order of their slots.
    pub(super) fn has_duplicates(&self) -> bool {
        let mut on_stack = [(0, 0); ON_STACK];
        let (mut count, mut last_end, mut are_ascending) = (0_usize, 0, true);
        for run in self.clone() {
            let (first, end) = run.slots();
            are_ascending &= last_end <= first;
            last_end = end;
            if let Some(place) = on_stack.get_mut(count) {
                *place = (first, end);
            }
            count = count.wrapping_add(1); // at most the number of tokens
        }
        if are_ascending {
            return false;
        }
        match on_stack.get_mut(..count) {
            Some(runs) => sorted_runs_meet(runs),
            None => {
                let mut runs = Vec::with_capacity(count);
                runs.extend(self.clone().map(SlotRun::slots));
                sorted_runs_meet(&mut runs)
            }
        }
    }
}

/// The number of runs that are compared without an allocation.
const ON_STACK: usize = 128;

/// Sorts ranges of slots, and returns `true` if two of them have a slot in common.
fn sorted_runs_meet(runs: &mut [(usize, usize)]) -> bool {
    runs.sort_unstable();
    runs.iter().zip(runs.iter().skip(1)).any(|((_, end), (next, _))| next < end)
}

impl<S: Fn(usize) -> Option<usize>> Iterator for SlotRuns<S> {
    type Item = SlotRun;

    #[inline(always)]
    fn next(&mut self) -> Option<SlotRun> {
        while self.token < self.tokens {
            let token = self.token;
            let mut next = token.wrapping_add(1); // at most `tokens`
            let slot = (self.slot_of)(token);
            if let Some(slot) = slot {
                let mut end = slot.wrapping_add(1); // G1: at most the number of slots
                while next < self.tokens && (self.slot_of)(next) == Some(end) {
                    (next, end) = (next.wrapping_add(1), end.wrapping_add(1));
                }
            }
            self.token = next;
            if let Some(slot) = slot {
                return Some(SlotRun { token, slot, count: next.wrapping_sub(token) });
            }
        }
        None
    }
}

impl SlotRun {
    /// Returns the first slot, and the slot after the last one.
    fn slots(self) -> (usize, usize) {
        (self.slot, self.slot.wrapping_add(self.count)) // G1: at most the number of slots
    }

    /// Divides the run into the rows of each block.
    #[inline(always)]
    pub(super) fn row_ranges(mut self, block_size: usize) -> impl Iterator<Item = RowRange> {
        core::iter::from_fn(move || {
            if self.count == 0 {
                return None;
            }
            let Self { token, slot, count } = self;
            let block = slot.checked_div(block_size)?;
            // No operation wraps: `offset` is a remainder, and `rows` is at most `count`.
            let offset = slot.wrapping_sub(block.wrapping_mul(block_size));
            let rows = count.min(block_size.wrapping_sub(offset));
            self = Self {
                token: token.wrapping_add(rows),
                slot: slot.wrapping_add(rows),
                count: count.wrapping_sub(rows),
            };
            Some(RowRange { sample: block, dst_row: offset, src_row: token, count: rows })
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Duplicate, ON_STACK, SlotRun, SlotRuns};

    fn runs(slots: &[i64]) -> SlotRuns<impl Fn(usize) -> Option<usize> + Clone> {
        SlotRuns::new(slots.len(), |token| usize::try_from(*slots.get(token)?).ok())
    }

    #[test]
    fn neighbours_form_runs_until_a_gap_or_a_skipped_token() {
        let found: Vec<_> =
            runs(&[4, 5, 6, 2, 3, -1, 4, 9]).map(|run| (run.token, run.slot, run.count)).collect();
        assert_eq!(found, [(0, 4, 3), (3, 2, 2), (6, 4, 1), (7, 9, 1)]);
        assert_eq!(runs(&[]).next(), None);
        assert_eq!(runs(&[-1, -2]).next(), None);
    }

    #[test]
    fn runs_end_with_their_block() {
        let run = SlotRun { token: 2, slot: 5, count: 6 };
        let rows: Vec<_> =
            run.row_ranges(4).map(|rows| (rows.sample, rows.dst_row, rows.src_row, rows.count)).collect();
        assert_eq!(rows, [(1, 1, 2, 3), (2, 0, 5, 3)]);
    }

    /// Tests lists of fewer runs than fit on the stack, of as many, and of more.
    #[test]
    fn the_first_duplicate_is_found_among_any_number_of_runs() {
        for count in [2, 3, ON_STACK - 1, ON_STACK, ON_STACK + 1, 1000] {
            // The slots descend, so that each token is a run.
            let slots: Vec<_> =
                (0_i64..).step_by(2).take(count).collect::<Vec<_>>().into_iter().rev().collect();
            assert!(!runs(&slots).has_duplicates());
            assert_eq!(runs(&slots).first_duplicate(), None);
            for (earlier, token) in [(0, 1), (0, count - 1), (count / 2, count - 1)] {
                if earlier == token {
                    continue;
                }
                let mut slots = slots.clone();
                slots[token] = slots[earlier];
                assert!(runs(&slots).has_duplicates());
                assert_eq!(runs(&slots).first_duplicate(), Some(Duplicate { token, earlier }));
            }
        }
        let of_three = runs(&[7, 3, 7, 3, 7]).first_duplicate();
        assert_eq!(of_three, Some(Duplicate { token: 2, earlier: 0 }));
    }
}
