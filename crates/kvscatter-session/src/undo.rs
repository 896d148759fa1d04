//! A point that a sample can go back to, with the rows of rings that were overwritten since.
//!
//! New rows lie after the rows of a sample, so a sample goes back by its number of tokens alone. Only in a ring does
//! a new row take the place of an older one. A ring has slack for its rewind. A row that the slack does not cover is
//! copied here before it is overwritten.
//!
//! The row of position `p` overwrites the row of position `p - capacity`. A point keeps the older row for every `p`
//! from [`limit`](RingTrack::limit) on whose older row belongs to the sample at the point. These are at most as many
//! rows as the window and the rewind have, for any number of steps.

use std::ops::Range;

use crate::caches::Caches;
use crate::error::SessionError;
use crate::memory_report::bytes;
use crate::ring_track::RingTrack;
use crate::state_history::StateHistory;

/// A point that a sample can go back to.
///
/// Its memory is allocated when a row is first copied, and is kept for the next point of the same batch index.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// The number of tokens at the point, or `None` if there is no point.
    tokens: Option<usize>,
    /// The copied rows, by ring size.
    rings: Vec<OldRows>,
    states: StateHistory,
}

/// The copied rows of the rings of one size.
#[derive(Debug, Default)]
struct OldRows {
    /// The first position whose older row is copied.
    first: usize,
    /// The end of the positions whose older rows are copied.
    end: usize,
    rows: Vec<u8>,
}

impl Undo {
    /// Sets the point to a sample as it is.
    pub(crate) fn set(&mut self, batch_index: usize, tokens: usize, rings: &[RingTrack], caches: &Caches) {
        self.tokens = Some(tokens);
        self.rings.resize_with(rings.len(), OldRows::default);
        for (old, ring) in self.rings.iter_mut().zip(rings) {
            let limit = ring.limit(batch_index, tokens);
            (old.first, old.end) = (limit, limit);
            old.rows.clear();
        }
        self.states.begin(batch_index, caches.states());
    }

    /// Removes the point.
    pub(crate) fn clear(&mut self) {
        self.tokens = None;
        self.states.clear();
    }

    /// Returns the number of tokens at the point, or `None` if there is no point.
    pub(crate) fn tokens(&self) -> Option<usize> {
        self.tokens
    }

    /// Returns the number of bytes allocated for copies.
    pub(crate) fn allocated(&self) -> u64 {
        bytes(self.rings.iter().map(|old| old.rows.capacity()).sum::<usize>() + self.states.allocated())
    }

    /// Copies the rows that a run overwrites when it writes up to the position `end`. Returns
    /// [`SessionError::UndoMemory`] if there is no memory for the rows.
    pub(crate) fn copy_rows(
        &mut self,
        batch_index: usize,
        end: usize,
        rings: &[RingTrack],
        caches: &Caches,
    ) -> Result<(), SessionError> {
        let Some(tokens) = self.tokens else { return Ok(()) };
        for (index, (old, ring)) in self.rings.iter_mut().zip(rings).enumerate() {
            let most = tokens.saturating_add(ring.capacity());
            let new = old.end..end.min(most);
            if new.is_empty() {
                continue;
            }
            let row = caches.ring_row(index);
            if old.rows.is_empty() {
                let needed = most.saturating_sub(old.first).saturating_mul(row);
                old.rows
                    .try_reserve_exact(needed)
                    .map_err(|_| SessionError::UndoMemory { needed: bytes(needed) })?;
            }
            old.end = new.end;
            for position in new {
                caches.copy_ring_row(index, batch_index, position - ring.capacity(), &mut old.rows);
            }
        }
        Ok(())
    }

    /// Keeps the states after each token that the last run fed a sample with a point, if the run returned them. Its
    /// step began at `step` tokens.
    pub(crate) fn keep_states(
        &mut self,
        batch_index: usize,
        step: usize,
        tokens: Range<usize>,
        caches: &Caches,
    ) -> Result<(), SessionError> {
        self.states.keep(batch_index, step, tokens, caches.states())
    }

    /// Drops states that only a step needed that has ended.
    pub(crate) fn drop_old_states(&mut self) {
        self.states.drop_old(0);
    }

    /// Forgets the states after more than `to` tokens, because the sample has gone back.
    pub(crate) fn forget_states(&mut self, to: usize) {
        self.states.forget_after(to);
    }

    /// Returns `true` if the states after `to` tokens are known: those at the point, or those of later tokens.
    pub(crate) fn has_states(&self, to: usize) -> bool {
        self.tokens.is_some_and(|tokens| to == tokens || self.states.reaches(to))
    }

    /// Returns `true` if a ring has or can get back the rows that a sample needs at `to` tokens, of which there are
    /// at least as many as at the point.
    pub(crate) fn reaches(&self, batch_index: usize, to: usize, ring: &RingTrack) -> bool {
        self.tokens.is_some_and(|tokens| is_covered(tokens, batch_index, to, ring))
    }

    /// Writes back the rows that positions from `to` on have overwritten, and the states after `to` tokens if they are
    /// known.
    ///
    /// The number of tokens must be at least that of the point, and the sample must be able to go back to it.
    pub(crate) fn restore(
        &mut self,
        batch_index: usize,
        to: usize,
        rings: &mut [RingTrack],
        caches: &mut Caches,
    ) {
        let Some(tokens) = self.tokens else { return };
        for (index, (old, ring)) in self.rings.iter().zip(rings).enumerate() {
            if !is_covered(tokens, batch_index, to, ring) {
                continue;
            }
            let row = caches.ring_row(index);
            let undone = old.first.max(to);
            for (position, saved) in (old.first..old.end).zip(old.rows.chunks_exact(row.max(1))) {
                if position >= undone {
                    caches.restore_ring_row(index, batch_index, position - ring.capacity(), saved);
                }
            }
            ring.set_high(batch_index, ring.high(batch_index).min(undone));
        }
        match to == tokens {
            true => self.states.restore_point(batch_index, caches.states_mut()),
            false => self.states.restore(batch_index, to, caches.states_mut()),
        }
    }
}

/// Returns `true` if the copies cover every older row that was overwritten since a point of `tokens` tokens. They
/// always cover what the point itself needs.
///
/// Copies do not cover rows of the sample that were written and overwritten after the point.
fn is_covered(tokens: usize, batch_index: usize, to: usize, ring: &RingTrack) -> bool {
    to == tokens || ring.high(batch_index) <= tokens.saturating_add(ring.capacity())
}
