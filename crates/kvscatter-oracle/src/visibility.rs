//! Which slots of a cache a query sees. Everything that reads a cache follows this rule.
//!
//! A slot of a cache contains one position of a sample's sequence. A query at position `q` sees position `p`
//! if and only if all of these are true:
//!
//! - The slot has been written: `0 <= p < T`, where `T` is the number of tokens so far.
//! - `q - p <= left`, if there is a left bound. A window of `W` positions has `left = W - 1`.
//! - `p - q <= right`, if there is a right bound. Causal attention has `right = 0`.
//!
//! `T` includes the tokens of the current step. The last of `S` queries is at position `T - 1`, so the first
//! is at `T - S`, which is negative if `S > T`.

/// What a sample's cache contains, and how far its queries see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// The number of tokens of the sample so far. It may exceed the capacity. A linear cache then contains
    /// the first tokens, and a ring contains the last.
    pub tokens: u64,
    /// The number of slots.
    pub capacity: u64,
    /// Whether position `p` is in slot `p mod capacity`. Otherwise it is in slot `p`.
    pub ring: bool,
    /// The number of positions before its own that a query sees, or `None` for all.
    pub left: Option<u64>,
    /// The number of positions after its own that a query sees, or `None` for all.
    pub right: Option<u64>,
}

impl Visibility {
    /// Returns whether the query at position `query` sees `slot`. A slot outside the cache is never seen.
    #[must_use]
    pub fn sees(&self, query: i64, slot: u64) -> bool {
        let Some(position) = self.position(slot) else { return false };
        // The differences of two 64-bit numbers fit.
        let before = i128::from(query) - i128::from(position);
        self.left.is_none_or(|left| before <= i128::from(left))
            && self.right.is_none_or(|right| -before <= i128::from(right))
    }

    /// Returns the position that `slot` contains, or `None` if it contains no token.
    #[must_use]
    pub fn position(&self, slot: u64) -> Option<u64> {
        if slot >= self.capacity {
            return None;
        }
        let (tokens, capacity, slot) = (i128::from(self.tokens), i128::from(self.capacity), i128::from(slot));
        let last = tokens - 1;
        let position = if self.ring { last - (last - slot).rem_euclid(capacity) } else { slot };
        // The position is below the number of tokens, so it fits.
        (0..tokens).contains(&position).then_some(position as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::Visibility;

    const ALL: Visibility = Visibility { tokens: 3, capacity: 4, ring: false, left: None, right: None };

    /// Returns one character per slot: `x` if the query sees it and `.` if not.
    fn row(visibility: Visibility, query: i64) -> String {
        (0..visibility.capacity).map(|slot| if visibility.sees(query, slot) { 'x' } else { '.' }).collect()
    }

    #[test]
    fn a_linear_cache_is_seen_up_to_its_tokens() {
        assert_eq!(row(ALL, 2), "xxx.");
        assert_eq!(row(Visibility { tokens: 0, ..ALL }, 0), "....");
        assert_eq!(row(Visibility { tokens: 9, ..ALL }, 8), "xxxx");
        assert!(!ALL.sees(2, 4));
    }

    #[test]
    fn a_causal_query_sees_itself_and_what_precedes_it() {
        let causal = Visibility { right: Some(0), ..ALL };
        assert_eq!(
            [-1, 0, 1, 2, 3].map(|query| row(causal, query)),
            ["....", "x...", "xx..", "xxx.", "xxx."]
        );
    }

    #[test]
    fn a_window_is_bounded_on_both_sides() {
        let window = Visibility { tokens: 6, capacity: 6, left: Some(2), right: Some(1), ..ALL };
        // The picture in the document of Attention-25.
        assert_eq!([0, 1, 2, 3].map(|query| row(window, query)), ["xx....", "xxx...", "xxxx..", ".xxxx."]);
        assert_eq!(row(window, -1), "x.....");
        assert_eq!(row(window, -2), "......");
        assert_eq!(row(window, 8), "......");
    }

    #[test]
    fn a_ring_contains_its_last_positions() {
        let ring = |tokens| Visibility { tokens, ring: true, ..ALL };
        let positions = |tokens| [0, 1, 2, 3].map(|slot| ring(tokens).position(slot));
        assert_eq!(positions(0), [None; 4]);
        assert_eq!(positions(3), [Some(0), Some(1), Some(2), None]);
        assert_eq!(positions(4), [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(positions(6), [Some(4), Some(5), Some(2), Some(3)]);
        assert_eq!(
            positions(u64::MAX),
            [u64::MAX - 4, u64::MAX - 3, u64::MAX - 2, u64::MAX - 5].map(|p| Some(p + 1))
        );
        assert_eq!(Visibility { capacity: 0, ..ring(6) }.position(0), None);
    }

    #[test]
    fn a_query_in_a_ring_sees_its_window() {
        let ring = Visibility { tokens: 6, ring: true, left: Some(1), right: Some(0), ..ALL };
        // The slots contain the positions 4, 5, 2 and 3.
        assert_eq!([5, 4, 3, 2, 1].map(|query| row(ring, query)), ["xx..", "x..x", "..xx", "..x.", "...."]);
    }

    #[test]
    fn numbers_at_the_ends_do_not_overflow() {
        let wide = Visibility { left: Some(u64::MAX), right: Some(u64::MAX), ..ALL };
        assert_eq!(row(wide, i64::MAX), "xxx.");
        assert_eq!(row(wide, i64::MIN), "xxx.");
        assert_eq!(row(Visibility { left: Some(0), right: Some(0), ..ALL }, i64::MIN), "....");
    }
}
