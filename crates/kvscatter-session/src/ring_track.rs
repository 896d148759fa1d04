//! How far the samples of a batch were written in the rings of one size.
//!
//! Each size has its own count, because a sample that goes back may have got back the rows of one ring and not of
//! another.

use std::ops::Range;

use kvscatter::ring::high_after;
use kvscatter_onnx::convert::RingSize;

/// The rings of one size, and the furthest position that was written for each batch index.
#[derive(Clone, Debug)]
pub(crate) struct RingTrack {
    size: RingSize,
    /// One more than the furthest position written, by batch index, as [`high_after`] counts it.
    high: Vec<usize>,
}

impl RingTrack {
    pub(crate) fn new(size: RingSize, batch: usize) -> Self {
        Self { size, high: vec![0; batch] }
    }

    /// Returns the same rings for some batch indices.
    pub(crate) fn part(&self, batch_indices: Range<usize>) -> Self {
        let high = self.high.get(batch_indices).unwrap_or_default().to_vec();
        Self { size: self.size, high }
    }

    pub(crate) fn size(&self) -> RingSize {
        self.size
    }

    pub(crate) fn capacity(&self) -> usize {
        self.size.capacity
    }

    pub(crate) fn high(&self, batch_index: usize) -> usize {
        self.high.get(batch_index).copied().unwrap_or_default()
    }

    pub(crate) fn set_high(&mut self, batch_index: usize, high: usize) {
        if let Some(of) = self.high.get_mut(batch_index) {
            *of = high;
        }
    }

    /// Records a run that writes `rows` rows of a sample from position `start` on, padding included.
    pub(crate) fn record(&mut self, batch_index: usize, start: usize, rows: usize) {
        let high = high_after(self.high(batch_index), start, rows);
        self.set_high(batch_index, high);
    }

    /// Returns the largest number of rows that a run can write for a sample of `tokens` tokens, so that the run is
    /// exact and leaves room for the ring's rewind.
    pub(crate) fn most_rows(&self, batch_index: usize, tokens: usize) -> usize {
        self.size.ring().most_rows(self.high(batch_index), tokens).min(self.size.chunk)
    }

    /// Returns the lowest number of tokens above 0 that a sample can be truncated to without a copy of older rows.
    pub(crate) fn least_start(&self, batch_index: usize) -> usize {
        self.size.ring().least_start(self.high(batch_index))
    }

    /// Returns the first position that the next token of a sample of `tokens` tokens sees.
    pub(crate) fn first_seen(&self, tokens: usize) -> usize {
        self.size.ring().first_seen(tokens)
    }

    /// Returns the first position whose row a sample of `tokens` tokens needs, also after it has been truncated by the
    /// ring's rewind.
    pub(crate) fn first_needed(&self, tokens: usize) -> usize {
        self.first_seen(match self.size.window {
            0 | 1 => tokens,
            _ => tokens.saturating_sub(self.size.rewind),
        })
    }

    /// Returns the position up to which rows can be written before one is lost that a sample of `tokens` tokens
    /// [needs](Self::first_needed). Position `p` overwrites position `p - capacity`.
    pub(crate) fn limit(&self, batch_index: usize, tokens: usize) -> usize {
        self.high(batch_index).max(self.first_needed(tokens).saturating_add(self.size.capacity))
    }

    /// Returns the positions of the rows that a sample of `tokens` tokens has of those that it needs.
    pub(crate) fn needed(&self, batch_index: usize, tokens: usize) -> Range<usize> {
        self.limit(batch_index, tokens).saturating_sub(self.size.capacity).min(tokens)..tokens
    }
}
