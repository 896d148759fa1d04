//! Steps that are undone or kept together.

use std::ops::{Deref, DerefMut};

use crate::undo::Undo;
use crate::{KvSession, Sample, SessionError};

impl KvSession {
    /// Sets a point that a sample can go back to. Any number of steps may follow, until [`commit`](Self::commit),
    /// [`rollback`](Self::rollback) or [`accept`](Self::accept).
    ///
    /// This copies the sample's states, if the model has any, and no rows. A later step copies a row of a ring before
    /// it overwrites it, if the ring's slack does not cover the row. [`memory`](Self::memory) returns the bytes of
    /// these copies.
    ///
    /// [`transaction`](Self::transaction) does the same with a guard.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::Begun`] if the sample has such a point already.
    pub fn begin(&mut self, sample: Sample) -> Result<(), SessionError> {
        let tokens = self.cached_tokens(sample)?;
        if self.begun(sample)?.is_some() {
            return Err(SessionError::Begun { sample });
        }
        if let Some(undo) = self.begun.get_mut(sample.batch_index) {
            undo.set(sample.batch_index, tokens, self.samples.rings(), &self.caches);
        }
        Ok(())
    }

    /// Returns the number of cached tokens at [`begin`](Self::begin), or `None` if the sample has no such point.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn begun(&self, sample: Sample) -> Result<Option<usize>, SessionError> {
        self.cached_tokens(sample)?;
        Ok(self.begun.get(sample.batch_index).and_then(Undo::tokens))
    }

    /// Keeps everything since [`begin`](Self::begin).
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NotBegun`] without a call of [`begin`](Self::begin).
    pub fn commit(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.point(sample)?;
        self.end(sample);
        Ok(())
    }

    /// Returns a sample to the point that [`begin`](Self::begin) set. Its next logits are the same as if the steps
    /// since then had not happened.
    ///
    /// The time depends on the number of rows that were copied, and not on the capacity. Nothing is allocated.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NotBegun`] without a call of [`begin`](Self::begin).
    pub fn rollback(&mut self, sample: Sample) -> Result<(), SessionError> {
        let tokens = self.point(sample)?;
        self.take_back(sample, tokens);
        self.end(sample);
        Ok(())
    }

    /// Keeps the first `tokens` tokens that were fed since [`begin`](Self::begin), and undoes the others.
    ///
    /// Speculative decoding uses this to keep the drafted tokens that the model would have chosen.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NotBegun`] without a call of [`begin`](Self::begin).
    /// - Returns [`SessionError::AcceptBeyond`] if fewer tokens were fed.
    /// - Returns [`SessionError::TruncateState`] if the model has states, unless all tokens or none are kept.
    /// - Returns [`SessionError::TruncateRing`] if more rows were written since then than a ring has slots, and later
    ///   ones have overwritten rows that the kept tokens need. Padding and failed runs count. This cannot happen for up
    ///   to `capacity - chunk` tokens in a ring that `convert` made.
    ///
    /// After an error, the point is still set.
    pub fn accept(&mut self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        let begun = self.point(sample)?;
        let fed = self.cached_tokens(sample)?.saturating_sub(begun);
        if tokens > fed {
            return Err(SessionError::AcceptBeyond { sample, accepted: tokens, fed });
        }
        self.truncate(sample, begun.saturating_add(tokens))?;
        self.end(sample);
        Ok(())
    }

    /// Sets a point for each of these samples, and returns a guard. If the guard is dropped, the samples go back.
    ///
    /// # Errors
    /// Returns the errors of [`begin`](Self::begin), and then sets no point.
    pub fn transaction(&mut self, samples: &[Sample]) -> Result<Transaction<'_>, SessionError> {
        self.begin_all(samples)?;
        Ok(Transaction { session: self, samples: samples.to_vec() })
    }

    /// Sets a point for each of these samples, or for none.
    ///
    /// # Errors
    /// Returns the errors of [`begin`](Self::begin), and then sets no point.
    pub fn begin_all(&mut self, samples: &[Sample]) -> Result<(), SessionError> {
        for (index, &sample) in samples.iter().enumerate() {
            if let Err(error) = self.begin(sample) {
                samples.iter().take(index).for_each(|&begun| self.end(begun));
                return Err(error);
            }
        }
        Ok(())
    }

    fn point(&self, sample: Sample) -> Result<usize, SessionError> {
        self.begun(sample)?.ok_or(SessionError::NotBegun { sample })
    }

    /// Removes the point of a batch index.
    pub(crate) fn end(&mut self, sample: Sample) {
        if let Some(undo) = self.begun.get_mut(sample.batch_index) {
            undo.clear();
        }
    }
}

/// Samples that go back to where they were when this guard is dropped.
///
/// The guard gives access to the session. A sample whose point was ended with [`commit`](KvSession::commit),
/// [`accept`](KvSession::accept) or [`rollback`](KvSession::rollback), or that was removed, stays as it is.
#[derive(Debug)]
pub struct Transaction<'s> {
    session: &'s mut KvSession,
    samples: Vec<Sample>,
}

impl Transaction<'_> {
    /// Keeps everything that has happened to the samples.
    pub fn commit_all(mut self) {
        for sample in std::mem::take(&mut self.samples) {
            // Samples that were ended or removed have no point.
            let _ = self.session.commit(sample);
        }
    }
}

impl Deref for Transaction<'_> {
    type Target = KvSession;

    fn deref(&self) -> &KvSession {
        self.session
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut KvSession {
        self.session
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        for &sample in &self.samples {
            // Samples that were ended or removed have no point.
            let _ = self.session.rollback(sample);
        }
    }
}
