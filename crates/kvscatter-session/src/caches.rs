//! The caches of a session and the rows of one sample in all of them.

use std::ops::Range;

use crate::memory_report::bytes;
use crate::{Feed, LogitsTensor, Rows, Runner, SessionError, Tensor};

/// The caches of a batch, `[batch, …, capacity, …]`.
pub(crate) struct Caches {
    pub(crate) tensors: Vec<Tensor>,
    rows: Vec<Rows>,
    /// For each batch index, one more than the furthest position that may have been written since its row was last set
    /// to zero.
    written: Vec<usize>,
}

/// The bytes that a run wrote to the caches and that the engine copied.
pub(crate) struct CacheTraffic {
    pub(crate) written: u64,
    pub(crate) copied: u64,
}

impl Caches {
    /// Allocates caches of zeros.
    pub(crate) fn new(runner: &Runner, batch: usize, capacity: usize) -> Result<Self, SessionError> {
        let tensors = runner.caches(batch, capacity)?;
        let rows = runner.interface.caches.iter().map(|cache| Rows::of(cache, capacity)).collect();
        Ok(Self { tensors, rows, written: vec![0; batch] })
    }

    /// Runs a step with the tensors `inputs`.
    ///
    /// Before the run, the rows after the cached tokens of each sample that gets tokens are set to zero.
    /// These rows contain padding, truncated tokens, or tokens of an earlier sample with the same batch
    /// index. Attention masks them, but an engine may still multiply them by zero, and 0 × NaN is NaN.
    pub(crate) fn run(
        &mut self,
        runner: &mut Runner,
        feed: &Feed,
        inputs: &[(String, Tensor)],
    ) -> Result<(LogitsTensor, CacheTraffic), SessionError> {
        for (batch_index, sample) in feed.samples.iter().enumerate() {
            if !sample.tokens.is_empty() {
                self.zero_from(batch_index, sample.start);
            }
        }
        // This is recorded before the run, because a run that fails may have written rows.
        for (written, sample) in self.written.iter_mut().zip(&feed.samples) {
            *written = (*written).max(sample.start + feed.width);
        }
        let at: Vec<usize> = self.tensors.iter().map(Tensor::address).collect();
        let (logits, present_at) = runner.in_place(inputs, &mut self.tensors, feed.width)?;
        let moved = self.tensors.iter().zip(at).zip(present_at).filter(|((_, at), present)| at != present);
        let rows = self.written.len() * feed.width;
        let wrote = CacheTraffic {
            written: self.rows.iter().map(|of| bytes(of.row() * rows)).sum(),
            copied: moved.map(|((cache, _), _)| bytes(cache.len())).sum(),
        };
        Ok((logits, wrote))
    }

    /// Copies the rows of these positions for [`restore_rows`](Self::restore_rows). The positions are listed by batch
    /// index.
    pub(crate) fn save_rows(&self, positions: &[(usize, Range<usize>)]) -> Vec<u8> {
        let mut saved = Vec::new();
        for (cache, rows) in self.tensors.iter().zip(&self.rows) {
            for run in positions.iter().flat_map(|(index, of)| rows.runs(*index, of.clone())) {
                match cache.bytes().get(run.clone()) {
                    Some(row) => saved.extend_from_slice(row),
                    // The engine lost this cache. Zeros stand for its rows, so that the rows of the other
                    // caches keep their places.
                    None => saved.resize(saved.len() + run.len(), 0),
                }
            }
        }
        saved
    }

    /// Writes back the rows that [`save_rows`](Self::save_rows) copied.
    pub(crate) fn restore_rows(&mut self, positions: &[(usize, Range<usize>)], mut saved: &[u8]) {
        for (cache, rows) in self.tensors.iter_mut().zip(&self.rows) {
            for run in positions.iter().flat_map(|(index, of)| rows.runs(*index, of.clone())) {
                let Some((first, rest)) = saved.split_at_checked(run.len()) else { return };
                if let Some(target) = cache.bytes_mut().get_mut(run) {
                    target.copy_from_slice(first);
                }
                saved = rest;
            }
        }
    }

    /// Sets the written rows of a batch index to zero, beginning at a position.
    fn zero_from(&mut self, batch_index: usize, from: usize) {
        let Some(written) = self.written.get_mut(batch_index).filter(|written| **written > from) else {
            return;
        };
        let positions = from..std::mem::replace(written, from);
        for (cache, rows) in self.tensors.iter_mut().zip(&self.rows) {
            for run in rows.runs(batch_index, positions.clone()) {
                if let Some(stale) = cache.bytes_mut().get_mut(run) {
                    stale.fill(0);
                }
            }
        }
    }
}
