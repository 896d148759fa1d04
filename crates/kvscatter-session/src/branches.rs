//! Copies of samples.

use std::collections::BTreeSet;

use crate::{KvSession, Sample, SessionError};

impl KvSession {
    /// Adds `copies` samples with the same past as `sample`.
    ///
    /// The rows that the past needs are copied, in all caches, and no others. The copies have no point of
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NoRoom`] if fewer than `copies` batch indices are free. No sample is then added.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    pub fn fork(&mut self, sample: Sample, copies: usize) -> Result<Vec<Sample>, SessionError> {
        self.cached_tokens(sample)?;
        self.check_free(copies, 0)?;
        (0..copies).map(|_| self.copy(sample)).collect()
    }

    /// Replaces the samples of a beam search. The result has one sample for each entry of `parents`, which continues
    /// the sample of `samples` with that index.
    ///
    /// The first child of a sample is that sample itself, so it keeps its batch index and moves no byte. Other children
    /// are copies. Samples without children are removed first, so that copies can take their batch indices.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] for a sample that is not in this batch.
    /// - Returns [`SessionError::SampleTwice`] for a sample that is listed twice.
    /// - Returns [`SessionError::NoSuchParent`] for a parent that is not an index of `samples`.
    /// - Returns [`SessionError::NoRoom`] if the copies need more batch indices than are free.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    ///
    /// After an error nothing has changed.
    pub fn reorder(&mut self, samples: &[Sample], parents: &[usize]) -> Result<Vec<Sample>, SessionError> {
        let mut seen = BTreeSet::new();
        for &sample in samples {
            self.cached_tokens(sample)?;
            if !seen.insert(sample) {
                return Err(SessionError::SampleTwice { sample });
            }
        }
        let parent = |(index, parent): (usize, &usize)| {
            let of = samples.get(*parent).copied();
            of.ok_or(SessionError::NoSuchParent { index, parent: *parent, samples: samples.len() })
        };
        let parents = parents.iter().enumerate().map(parent).collect::<Result<Vec<_>, _>>()?;
        let kept: BTreeSet<_> = parents.iter().copied().collect();
        let dropped: Vec<_> = seen.difference(&kept).copied().collect();
        self.check_free(parents.len() - kept.len(), dropped.len())?;
        for sample in dropped {
            self.remove(sample)?;
        }
        let mut unused = kept;
        let child = |parent| if unused.remove(&parent) { Ok(parent) } else { self.copy(parent) };
        parents.into_iter().map(child).collect()
    }

    /// Checks that `needed` batch indices are free, or become free when `removed` samples are removed.
    fn check_free(&self, needed: usize, removed: usize) -> Result<(), SessionError> {
        self.caches.check_lost(&self.runner)?;
        let free = self.samples.free() + removed;
        if needed > free {
            return Err(SessionError::NoRoom { needed, free, batch: self.batch() });
        }
        Ok(())
    }

    fn copy(&mut self, from: Sample) -> Result<Sample, SessionError> {
        let tokens = self.tokens(from)?.to_vec();
        let to = self.samples.add()?;
        self.caches.copy_sample(from.batch_index, to.batch_index, tokens.len(), self.samples.rings());
        for ring in self.samples.rings_mut() {
            let high = ring.limit(from.batch_index, tokens.len());
            ring.set_high(to.batch_index, high);
        }
        self.samples.extend(to, &tokens);
        Ok(to)
    }
}
