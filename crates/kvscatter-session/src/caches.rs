//! The caches of a session, and the rows of a place in all of them.

use std::ops::Range;

use crate::memory_report::bytes;
use crate::{Feed, Logits, Rows, Runner, SessionError, Tensor};

/// The caches of a batch, `[batch, …, capacity, …]`.
pub(crate) struct Caches {
    pub(crate) tensors: Vec<Tensor>,
    rows: Vec<Rows>,
    /// How many slots of each place, from the first, have been written since they were zeros.
    written: Vec<usize>,
}

/// What a run did to the caches, in bytes.
pub(crate) struct CacheTraffic {
    pub(crate) written: u64,
    pub(crate) copied: u64,
}

impl Caches {
    /// Caches of zeros.
    pub(crate) fn new(runner: &Runner, batch: usize, capacity: usize) -> Result<Self, SessionError> {
        let tensors = runner.caches(batch, capacity)?;
        let rows = runner.interface.caches.iter().map(|cache| Rows::of(cache, capacity)).collect();
        Ok(Self { tensors, rows, written: vec![0; batch] })
    }

    /// Runs a step, whose tensors `inputs` are.
    ///
    /// What was written after the length of a sample that gets tokens is zeroed first, also what another sample wrote: the sample
    /// that had the place before, tokens that were cut off, padding. Nothing sees those rows, but attention may multiply
    /// them by zero, and 0 × NaN is NaN.
    pub(crate) fn run(
        &mut self,
        runner: &mut Runner,
        feed: &Feed,
        inputs: &[(String, Tensor)],
    ) -> Result<(Logits, CacheTraffic), SessionError> {
        for (place, sample) in feed.samples.iter().enumerate() {
            if !sample.tokens.is_empty() {
                self.zero_from(place, sample.start);
            }
        }
        // Before the run: one that fails may have written.
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

    /// The rows of places in these slots, to be [put back](Self::restore_rows).
    pub(crate) fn keep(&self, slots: &[(usize, Range<usize>)]) -> Vec<u8> {
        let mut kept = Vec::new();
        for (cache, rows) in self.tensors.iter().zip(&self.rows) {
            for run in slots.iter().flat_map(|(place, slots)| rows.runs(*place, slots.clone())) {
                match cache.bytes().get(run.clone()) {
                    Some(row) => kept.extend_from_slice(row),
                    // A cache that the engine lost: there is nothing to keep, and the others' rows stay in order.
                    None => kept.resize(kept.len() + run.len(), 0),
                }
            }
        }
        kept
    }

    pub(crate) fn restore_rows(&mut self, slots: &[(usize, Range<usize>)], mut kept: &[u8]) {
        for (cache, rows) in self.tensors.iter_mut().zip(&self.rows) {
            for run in slots.iter().flat_map(|(place, slots)| rows.runs(*place, slots.clone())) {
                let Some((first, rest)) = kept.split_at_checked(run.len()) else { return };
                if let Some(target) = cache.bytes_mut().get_mut(run) {
                    target.copy_from_slice(first);
                }
                kept = rest;
            }
        }
    }

    /// Zeroes what was written in a place from this slot on.
    fn zero_from(&mut self, place: usize, from: usize) {
        let Some(written) = self.written.get_mut(place).filter(|written| **written > from) else { return };
        let slots = from..std::mem::replace(written, from);
        for (cache, rows) in self.tensors.iter_mut().zip(&self.rows) {
            for run in rows.runs(place, slots.clone()) {
                if let Some(forgotten) = cache.bytes_mut().get_mut(run) {
                    forgotten.fill(0);
                }
            }
        }
    }
}
