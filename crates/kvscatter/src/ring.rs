//! How large a ring must be, and which steps it takes.
//!
//! A ring of `C` slots serves a layer whose queries see their own position and the `W - 1` before it. Slot
//! `p mod C` contains position `p`. A step that writes too far overwrites a row that one of its queries still needs.
//! Nothing fails then, and the numbers are wrong. So test a step with [`Ring::takes`] before you run it.
//!
//! A query at position `q` sees slot `s` if and only if `(q - s) mod C <= min(q, W - 1)`. A step is exact if each of
//! its queries sees its window by this rule and nothing else. For `W >= 2` and without padding on the left, that is
//! the case if and only if
//!
//! > `max(high, start + rows) - max(0, start - W + 1) <= C`
//!
//! Here `start` is the position of the first row that the step writes, and `rows` counts padding on the right too.
//! `high` is one more than the furthest position written so far, padding included, as [`high_after`] computes it. All
//! earlier steps must have been exact, and the step must have a real row. For `W = 1`, the condition is `rows <= C`.
//! With padding on the left, the inequality is sufficient but not necessary.
//!
//! ```
//! use kvscatter::ring::{Feeding, Ring, high_after, least_capacity};
//!
//! // Steps of up to 4 tokens without padding, and up to 2 tokens that are taken back.
//! let capacity = least_capacity(8, 4, 2, Feeding::WithoutPadding);
//! assert_eq!(capacity, 11);
//! let ring = Ring::new(capacity, 8);
//! let mut high = 0;
//! for start in (0..100).step_by(4) {
//!     assert!(ring.takes(high, start, 4));
//!     high = high_after(high, start, 4);
//! }
//! // Four tokens can be taken back at this point, and not five.
//! assert_eq!(ring.least_start(high), 96);
//! ```

/// A ring of a layer with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    capacity: usize,
    window: usize,
}

/// What the steps of a sample may contain besides its tokens. It determines the [least capacity](least_capacity).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feeding {
    /// A step writes tokens only, or padding is not written.
    WithoutPadding,
    /// A step may be padded on the right, and has at least one token.
    PaddedOnTheRight,
    /// A step may also consist of padding alone, for a sample that waits for others.
    Idle,
}

impl Ring {
    /// Creates a ring of `capacity` slots for a window of `window` positions. A window of 0 is like 1.
    #[must_use]
    pub const fn new(capacity: usize, window: usize) -> Self {
        Self { capacity, window }
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of positions that a query sees.
    #[must_use]
    pub const fn window(&self) -> usize {
        self.window
    }

    /// Returns `true` if a step that writes `rows` rows from position `start` on is exact.
    ///
    /// `high` is one more than the furthest position written before. It does not matter if `start` is 0, because the
    /// sample then starts over.
    #[must_use]
    pub fn takes(&self, high: usize, start: usize, rows: usize) -> bool {
        rows <= self.most_rows(high, start)
    }

    /// Returns the largest number of rows that an exact step can write from position `start` on, or 0 if there is no
    /// such step.
    #[must_use]
    pub fn most_rows(&self, high: usize, start: usize) -> usize {
        if self.window <= 1 {
            return self.capacity;
        }
        // The position whose row overwrites the first one that the step sees.
        let limit = self.first_seen(start).saturating_add(self.capacity);
        let is_intact = start == 0 || high <= limit;
        if is_intact { limit.saturating_sub(start) } else { 0 }
    }

    /// Returns the lowest position above 0 from which an exact step can still start, or 0 if every position is
    /// possible. A sample that is taken back further must start over at 0.
    ///
    /// The capacity must be at least the window. [`most_rows`](Self::most_rows) returns how many rows such a step can
    /// have.
    #[must_use]
    pub fn least_start(&self, high: usize) -> usize {
        if self.window <= 1 || high <= self.capacity {
            return 0;
        }
        high.saturating_sub(self.capacity).saturating_add(self.window.saturating_sub(1))
    }

    /// Returns the first position that a query at position `start` sees.
    #[must_use]
    pub fn first_seen(&self, start: usize) -> usize {
        start.saturating_sub(self.window.saturating_sub(1))
    }
}

/// Returns one more than the furthest position written, after a step of `rows` rows from position `start` on. A sample
/// that starts over at 0 reads nothing that was written before.
#[must_use]
pub fn high_after(high: usize, start: usize, rows: usize) -> usize {
    if start == 0 { rows } else { high.max(start.saturating_add(rows)) }
}

/// Returns the least number of slots with which every step of up to `rows` rows is exact, if a sample is never taken
/// back by more than `rewind` tokens below its furthest one.
///
/// Rewinds add up until the furthest token is passed: back 5, forward 1 and back 5 is a rewind of 9.
#[must_use]
pub fn least_capacity(window: usize, rows: usize, rewind: usize, feeding: Feeding) -> usize {
    let more = match feeding {
        Feeding::WithoutPadding => rows.max(rewind),
        Feeding::PaddedOnTheRight => rows.saturating_add(rewind.saturating_sub(1)),
        Feeding::Idle => rows.saturating_add(rewind),
    };
    match window {
        0 | 1 => rows,
        _ => window.saturating_sub(1).saturating_add(more),
    }
}
