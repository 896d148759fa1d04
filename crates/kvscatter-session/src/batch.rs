//! The samples of a running batch and the cached tokens of each.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use kvscatter_onnx::convert::RingSize;

use crate::error::SessionError;
use crate::model_runs::ModelRun;
use crate::ring_track::RingTrack;
use crate::sample::Sample;

/// Maps batch indices to samples.
pub(crate) struct Batch {
    capacity: usize,
    /// The rings, one entry for each size.
    rings: Vec<RingTrack>,
    /// One entry for each batch index, or `None` if the index is free.
    entries: Vec<Option<Entry>>,
}

struct Entry {
    serial: u64,
    /// The ids of the cached tokens.
    tokens: Vec<i64>,
}

/// The next serial number. Each number is used once in a process, so a session detects samples of another
/// session.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Batch {
    pub(crate) fn new(batch: usize, capacity: usize, rings: impl IntoIterator<Item = RingSize>) -> Self {
        let sizes: BTreeSet<_> = rings.into_iter().collect();
        let rings = sizes.into_iter().map(|size| RingTrack::new(size, batch)).collect();
        Self { capacity, rings, entries: (0..batch).map(|_| None).collect() }
    }

    /// Returns the number of samples that fit.
    pub(crate) fn size(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds an empty sample at the first free batch index.
    pub(crate) fn add(&mut self) -> Result<Sample, SessionError> {
        let batch = self.size();
        let (batch_index, free) = self
            .entries
            .iter_mut()
            .enumerate()
            .find(|(_, entry)| entry.is_none())
            .ok_or(SessionError::BatchFull { batch })?;
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        *free = Some(Entry { serial, tokens: Vec::new() });
        Ok(Sample::new(batch_index, serial))
    }

    /// Returns the number of free batch indices.
    pub(crate) fn free(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_none()).count()
    }

    pub(crate) fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.tokens(sample)?;
        if let Some(entry) = self.entries.get_mut(sample.batch_index()) {
            *entry = None;
        }
        Ok(())
    }

    /// Returns the ids of the cached tokens of a sample.
    pub(crate) fn tokens(&self, sample: Sample) -> Result<&[i64], SessionError> {
        let entry = self.entries.get(sample.batch_index()).and_then(Option::as_ref);
        let entry = entry.filter(|entry| entry.serial == sample.serial());
        entry.map(|entry| entry.tokens.as_slice()).ok_or(SessionError::NoSuchSample { sample })
    }

    pub(crate) fn cached_tokens(&self, sample: Sample) -> Result<usize, SessionError> {
        self.tokens(sample).map(<[i64]>::len)
    }

    /// Appends cached tokens of a sample. They must have passed [`check_room`](Self::check_room).
    pub(crate) fn extend(&mut self, sample: Sample, tokens: &[i64]) {
        if let Some(Some(entry)) = self.entries.get_mut(sample.batch_index()) {
            entry.tokens.extend_from_slice(tokens);
        }
    }

    /// Drops the tokens of a sample from `to` on. [`check_truncation`](Self::check_truncation) must have passed.
    pub(crate) fn shorten(&mut self, sample: Sample, to: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(sample.batch_index()) {
            entry.tokens.truncate(to);
        }
    }

    /// Checks that a sample has `to` tokens, and that the rings have the rows that its next token then sees.
    ///
    /// `is_restored` returns `true` for a ring whose older rows can be written back.
    pub(crate) fn check_truncation(
        &self,
        sample: Sample,
        to: usize,
        is_restored: impl Fn(&RingTrack) -> bool,
    ) -> Result<(), SessionError> {
        let cached = self.cached_tokens(sample)?;
        if to > cached {
            return Err(SessionError::TruncateBeyond { sample, to, cached });
        }
        let lost = self.rings.iter().filter(|ring| !is_restored(ring));
        let least = lost.map(|ring| (ring.least_start(sample.batch_index()), ring.size())).max();
        match least.filter(|(least, _)| to > 0 && to < cached && to < *least) {
            Some((least, ring)) => Err(SessionError::TruncateRing { sample, to, cached, least, ring }),
            None => Ok(()),
        }
    }

    /// Records the rows that a run writes, padding included. Call this before the run, because a run that fails may
    /// have written them.
    pub(crate) fn record(&mut self, run: &ModelRun) {
        for ring in &mut self.rings {
            for (batch_index, sample) in run.fed() {
                ring.record(batch_index, sample.start, run.feed.width);
            }
        }
    }

    /// Returns the rings, one entry for each size.
    pub(crate) fn rings(&self) -> &[RingTrack] {
        &self.rings
    }

    pub(crate) fn rings_mut(&mut self) -> &mut [RingTrack] {
        &mut self.rings
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
        self.entries.iter().map(|entry| entry.as_ref().map_or(0, |entry| entry.tokens.len())).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Sample> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(batch_index, entry)| {
            entry.as_ref().map(|entry| Sample::new(batch_index, entry.serial))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Batch;
    use crate::error::SessionError;

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
        let cut = batch.check_truncation(first, 0, |_| false);
        assert!(matches!(cut, Err(SessionError::NoSuchSample { .. })));
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
        batch.extend(sample, &[7, 8, 9]);
        for tokens in [2, usize::MAX] {
            let refused = batch.check_room(sample, tokens);
            assert!(matches!(refused, Err(SessionError::CapacityExceeded { cached: 3, capacity: 4, .. })));
        }
        assert!(matches!(
            batch.check_truncation(sample, 4, |_| false),
            Err(SessionError::TruncateBeyond { to: 4, cached: 3, .. })
        ));
        batch.check_truncation(sample, 1, |_| false).unwrap();
        batch.shorten(sample, 1);
        assert_eq!((batch.tokens(sample).unwrap(), batch.all_cached_tokens()), (&[7][..], vec![1]));
    }
}
