//! Which slots of a cache a query sees.
//!
//! This module is to reading what a [`WritePlan`](crate::WritePlan) is to writing. It is the only place that
//! converts between positions and slots for attention. Masks, attention kernels and sessions use it.
//!
//! A sample with `tokens` tokens so far has cached a range of positions. A linear cache contains the first
//! positions, and position `p` is in slot `p`. A ring contains the last positions, and position `p` is in
//! slot `p mod capacity`. A query at position `q` sees a cached position `p` if `q - left <= p <= q + right`.
//! A side without a limit is unbounded.
//!
//! The rule knows no padding. A caller hides the slots with padding, and decides what positions count. If they count
//! slots, padding between two tokens takes the place of a token in a window. If they count real tokens, it does not.
//!
//! The rule is the one of ONNX `Attention` for a linear cache: `is_causal` is a right limit of 0,
//! `left_window_size` and `right_window_size` are the limits, and query `i` of `n` has position
//! `nonpad_kv_seqlen - n + i`. Rings are a kvscatter extension.
//!
//! ```
//! use kvscatter::{Mode, visibility::Visibility};
//!
//! // A ring of 4 slots whose sample has 6 tokens contains the positions 2 to 5.
//! let ring = Visibility::new(Mode::Circular, 4).causal().window(3);
//! assert_eq!(ring.cached(6), 2..6);
//! // The query at position 5 sees the positions 3, 4 and 5, which are in the slots 3, 0 and 1.
//! assert_eq!(ring.positions(6, 5), 3..6);
//! assert_eq!(ring.slots(3..6), [3..4, 0..2]);
//! assert!(ring.sees(6, 5, 1) && !ring.sees(6, 5, 2));
//! ```

use core::ops::Range;

use crate::plan::Mode;

/// The rule that decides which slots of a cache a query sees.
///
/// Positions are unwrapped, so they keep growing in a ring. A position may be negative: the first queries of
/// a step have negative positions if the step has more queries than the sample has tokens. They see nothing
/// if the rule is causal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Visibility {
    mode: Mode,
    capacity: usize,
    left: Option<i64>,
    right: Option<i64>,
}

impl Visibility {
    /// Creates a rule for a cache of `capacity` slots in which a query sees every cached position.
    #[must_use]
    pub const fn new(mode: Mode, capacity: usize) -> Self {
        Self { mode, capacity, left: None, right: None }
    }

    /// Hides every position after the query's.
    #[must_use]
    pub fn causal(self) -> Self {
        self.right(0)
    }

    /// Hides every position except the query's and the `size - 1` before it. A `size` of 0 is like 1.
    #[must_use]
    pub fn window(self, size: usize) -> Self {
        self.left(size.saturating_sub(1))
    }

    /// Hides every position more than `limit` before the query's. The smallest limit counts.
    #[must_use]
    pub fn left(self, limit: usize) -> Self {
        Self { left: smaller(self.left, limit), ..self }
    }

    /// Hides every position more than `limit` after the query's. The smallest limit counts.
    #[must_use]
    pub fn right(self, limit: usize) -> Self {
        Self { right: smaller(self.right, limit), ..self }
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns whether the cache is linear or a ring.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the positions that the cache contains for a sample with `tokens` tokens so far. The range is
    /// empty if `tokens` is negative.
    #[must_use]
    pub fn cached(&self, tokens: i64) -> Range<i64> {
        let (tokens, capacity) = (tokens.max(0), to_i64(self.capacity));
        match self.mode {
            Mode::Linear => 0..tokens.min(capacity),
            Mode::Circular => tokens.saturating_sub(capacity).max(0)..tokens,
        }
    }

    /// Returns the positions that a query at position `query` sees, for a sample with `tokens` tokens so far.
    #[must_use]
    pub fn positions(&self, tokens: i64, query: i64) -> Range<i64> {
        let cached = self.cached(tokens);
        let start = self.left.map_or(cached.start, |left| query.saturating_sub(left).max(cached.start));
        let end = self
            .right
            .map_or(cached.end, |right| query.saturating_add(right).saturating_add(1).min(cached.end));
        start.min(end.max(cached.start))..end.max(cached.start)
    }

    /// Returns the slot of a position. A negative position has none, and neither has a position at or above
    /// the capacity of a linear cache.
    #[must_use]
    pub fn slot_of(&self, position: i64) -> Option<usize> {
        let position = usize::try_from(position).ok()?;
        match self.mode {
            Mode::Linear => (position < self.capacity).then_some(position),
            Mode::Circular => position.checked_rem(self.capacity),
        }
    }

    /// Returns the position that a slot contains, for a sample with `tokens` tokens so far, or `None` if the
    /// slot contains no token of the sample.
    #[must_use]
    pub fn position_of(&self, tokens: i64, slot: usize) -> Option<i64> {
        let cached = self.cached(tokens);
        if slot >= self.capacity {
            return None;
        }
        let capacity = to_i64(self.capacity);
        // The cached positions are consecutive and at most as many as the slots, so one of them is in the slot
        // or none.
        let first = self.slot_of(cached.start).map_or(0, to_i64);
        let steps = to_i64(slot).saturating_sub(first).checked_rem_euclid(capacity)?;
        let position = cached.start.checked_add(steps)?;
        cached.contains(&position).then_some(position)
    }

    /// Returns the slots of consecutive cached positions, in the order of the positions. The second range is
    /// empty unless the positions wrap around the end of a ring.
    #[must_use]
    pub fn slots(&self, positions: Range<i64>) -> [Range<usize>; 2] {
        let length = positions.end.saturating_sub(positions.start);
        let (Some(start), Ok(length)) = (self.slot_of(positions.start), usize::try_from(length)) else {
            return [0..0, 0..0];
        };
        let length = length.min(self.capacity);
        let end = start.saturating_add(length);
        let wrapped = if self.mode == Mode::Circular { end.saturating_sub(self.capacity) } else { 0 };
        [start..end.min(self.capacity), 0..wrapped]
    }

    /// Returns `true` if a query at position `query` sees a slot, for a sample with `tokens` tokens so far.
    #[must_use]
    pub fn sees(&self, tokens: i64, query: i64, slot: usize) -> bool {
        let position = self.position_of(tokens, slot);
        position.is_some_and(|position| self.positions(tokens, query).contains(&position))
    }
}

fn smaller(limit: Option<i64>, other: usize) -> Option<i64> {
    let other = to_i64(other);
    Some(limit.map_or(other, |limit| limit.min(other)))
}

/// Converts a size. Sizes above `i64::MAX` do not occur, because tensors that large do not fit in memory.
fn to_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
