//! How many slots a ring needs.

use kvscatter::ring::{Feeding, Ring, least_capacity};

/// The size of a ring for a layer with a sliding window, from what its steps do.
///
/// A ring of exactly `window` slots serves one token at a time. A longer chunk overwrites rows that its first
/// tokens still need, and a sequence that is taken back has lost the rows that it needs again. The ring is
/// longer by what chunks and rewinds need, and no more.
///
/// ```
/// use kvscatter_candle::kv_cache::{RingSize, RotatingKvCache};
///
/// let size = RingSize::for_window(4096).chunk(512).rewind(8);
/// assert_eq!(size.capacity(), 4095 + 512);
/// let cache = RotatingKvCache::with_size(2, size);
/// # let _ = cache;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    window: usize,
    chunk: usize,
    rewind: usize,
    slots: Option<usize>,
}

impl RingSize {
    /// Creates the size for a window of `window` tokens, which includes the token itself. Tokens are appended
    /// one at a time, and the sequence is not shortened, unless [`chunk`](Self::chunk) and
    /// [`rewind`](Self::rewind) permit more.
    #[must_use]
    pub const fn for_window(window: usize) -> Self {
        Self { window, chunk: 1, rewind: 0, slots: None }
    }

    /// Permits appends of up to `tokens` tokens to a sequence. The first append to an empty cache may have any
    /// length.
    #[must_use]
    pub const fn chunk(self, tokens: usize) -> Self {
        Self { chunk: tokens, ..self }
    }

    /// Permits `truncate` to remove up to `tokens` tokens, counted from the longest sequence so far.
    ///
    /// Rewinds add up until the sequence is longer than before: back 5, forward 1 and back 5 is a rewind of 9.
    #[must_use]
    pub const fn rewind(self, tokens: usize) -> Self {
        Self { rewind: tokens, ..self }
    }

    /// Uses exactly `slots` slots, for example a multiple of a block size. With fewer slots than
    /// [`capacity`](Self::capacity) returns without this call, some chunks or rewinds are refused.
    #[must_use]
    pub const fn slots(self, slots: usize) -> Self {
        Self { slots: Some(slots), ..self }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        // An append has no padding, because it writes the same positions in every sample.
        let least = || least_capacity(self.window, self.chunk.max(1), self.rewind, Feeding::WithoutPadding);
        self.slots.unwrap_or_else(least)
    }

    /// Returns the rule that decides which steps the ring takes.
    pub(super) fn ring(&self) -> Ring {
        Ring::new(self.capacity(), self.window)
    }
}
