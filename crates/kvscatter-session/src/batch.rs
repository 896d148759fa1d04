//! The samples of a running batch and the number of cached tokens of each.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use kvscatter::ring::high_after;
use kvscatter_onnx::convert::RingSize;

use crate::{Feed, Sample, SessionError};

/// Maps batch indices to samples.
pub(crate) struct Batch {
    capacity: usize,
    /// The sizes of the rings, each once.
    rings: Vec<RingSize>,
    /// For each batch index, one more than the furthest position written, as [`high_after`] counts it.
    high: Vec<usize>,
    /// One entry for each batch index, or `None` if the index is free.
    entries: Vec<Option<Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    serial: u64,
    cached_tokens: usize,
}

/// The next serial number. Each number is used once in a process, so a session detects samples of another
/// session.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Batch {
    pub(crate) fn new(batch: usize, capacity: usize, rings: impl IntoIterator<Item = RingSize>) -> Self {
        let rings: BTreeSet<_> = rings.into_iter().collect();
        let rings = rings.into_iter().collect();
        Self { capacity, rings, high: vec![0; batch], entries: vec![None; batch] }
    }

    pub(crate) fn batch(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds a sample at the first free batch index.
    pub(crate) fn add(&mut self) -> Result<Sample, SessionError> {
        let batch = self.batch();
        let (batch_index, free) = self
            .entries
            .iter_mut()
            .enumerate()
            .find(|(_, entry)| entry.is_none())
            .ok_or(SessionError::BatchFull { batch })?;
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        *free = Some(Entry { serial, cached_tokens: 0 });
        Ok(Sample { batch_index, serial })
    }

    pub(crate) fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.entry(sample)?;
        if let Some(entry) = self.entries.get_mut(sample.batch_index) {
            *entry = None;
        }
        Ok(())
    }

    pub(crate) fn cached_tokens(&self, sample: Sample) -> Result<usize, SessionError> {
        self.entry(sample).map(|entry| entry.cached_tokens)
    }

    pub(crate) fn truncate(&mut self, sample: Sample, to: usize) -> Result<(), SessionError> {
        let cached = self.cached_tokens(sample)?;
        if to > cached {
            return Err(SessionError::TruncateBeyond { sample, to, cached });
        }
        let high = self.high(sample);
        let least = self.rings.iter().map(|size| (size.ring().least_start(high), *size)).max();
        if let Some((least, ring)) = least.filter(|(least, _)| to > 0 && to < cached && to < *least) {
            return Err(SessionError::TruncateRing { sample, to, cached, least, ring });
        }
        self.set_cached_tokens(sample, to);
        Ok(())
    }

    /// Checks that every ring still has the rows that the next token of a sample sees.
    pub(crate) fn check_rings(&self, sample: Sample) -> Result<(), SessionError> {
        let (cached, high) = (self.cached_tokens(sample)?, self.high(sample));
        match self.rings.iter().find(|size| !size.ring().takes(high, cached, 1)) {
            Some(&ring) => Err(SessionError::RingOverwritten { sample, cached, ring }),
            None => Ok(()),
        }
    }

    /// Records the rows that a run writes, padding included. Call this before the run, because a run that fails may
    /// have written them.
    pub(crate) fn record(&mut self, feed: &Feed) {
        for (high, sample) in self.high.iter_mut().zip(&feed.samples) {
            *high = high_after(*high, sample.start, feed.width);
        }
    }

    /// Returns the sizes of the rings, each once.
    pub(crate) fn rings(&self) -> &[RingSize] {
        &self.rings
    }

    /// Returns one more than the furthest position written, for each batch index.
    pub(crate) fn all_high(&self) -> &[usize] {
        &self.high
    }

    fn high(&self, sample: Sample) -> usize {
        self.high.get(sample.batch_index).copied().unwrap_or_default()
    }

    /// Checks that a sample is in this batch and has room for `tokens` more tokens.
    pub(crate) fn check_room(&self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        let (cached, capacity) = (self.cached_tokens(sample)?, self.capacity);
        if cached.checked_add(tokens).is_none_or(|after| after > capacity) {
            return Err(SessionError::CapacityExceeded { sample, cached, tokens, capacity });
        }
        Ok(())
    }

    /// Returns the number of cached tokens for each batch index, with 0 for free indices.
    pub(crate) fn all_cached_tokens(&self) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.map_or(0, |entry| entry.cached_tokens)).collect()
    }

    /// Sets the number of cached tokens of a sample. A number that is larger than before must have passed
    /// [`check_room`](Self::check_room).
    pub(crate) fn set_cached_tokens(&mut self, sample: Sample, cached_tokens: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(sample.batch_index) {
            entry.cached_tokens = cached_tokens;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Sample> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(batch_index, entry)| {
            entry.map(|entry| Sample { batch_index, serial: entry.serial })
        })
    }

    fn entry(&self, sample: Sample) -> Result<Entry, SessionError> {
        let entry = self.entries.get(sample.batch_index).copied().flatten();
        entry.filter(|entry| entry.serial == sample.serial).ok_or(SessionError::NoSuchSample { sample })
    }
}

#[cfg(test)]
mod tests {
    use super::Batch;
    use crate::SessionError;

    #[test]
    fn a_batch_index_that_is_used_again_is_another_sample() {
        let mut batch = Batch::new(2, 4, []);
        let (first, second) = (batch.add().unwrap(), batch.add().unwrap());
        assert!(matches!(batch.add(), Err(SessionError::BatchFull { batch: 2 })));
        batch.remove(first).unwrap();
        assert!(matches!(batch.cached_tokens(first), Err(SessionError::NoSuchSample { .. })));
        assert!(matches!(batch.remove(first), Err(SessionError::NoSuchSample { .. })));
        let third = batch.add().unwrap();
        assert_eq!((third.batch_index(), first.batch_index()), (0, 0));
        assert!(matches!(batch.truncate(first, 0), Err(SessionError::NoSuchSample { .. })));
        assert_eq!(batch.iter().collect::<Vec<_>>(), [third, second]);
    }

    #[test]
    fn a_sample_of_another_session_is_an_error() {
        let (mut here, mut there) = (Batch::new(1, 4, []), Batch::new(1, 4, []));
        let (sample, other) = (here.add().unwrap(), there.add().unwrap());
        assert!(matches!(here.cached_tokens(other), Err(SessionError::NoSuchSample { .. })));
        assert_eq!(here.cached_tokens(sample).unwrap(), 0);
    }

    #[test]
    fn a_sample_is_made_shorter_and_never_longer() {
        let mut batch = Batch::new(1, 4, []);
        let sample = batch.add().unwrap();
        batch.check_room(sample, 4).unwrap();
        batch.set_cached_tokens(sample, 3);
        for tokens in [2, usize::MAX] {
            let refused = batch.check_room(sample, tokens);
            assert!(matches!(refused, Err(SessionError::CapacityExceeded { cached: 3, capacity: 4, .. })));
        }
        assert!(matches!(
            batch.truncate(sample, 4),
            Err(SessionError::TruncateBeyond { to: 4, cached: 3, .. })
        ));
        batch.truncate(sample, 1).unwrap();
        assert_eq!(batch.all_cached_tokens(), [1]);
    }
}
