//! Steps that are undone or kept together.

use std::ops::{Deref, DerefMut};

use crate::error::SessionError;
use crate::kv_session::KvSession;
use crate::sample::Sample;

impl KvSession {
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
                for &begun in samples.iter().take(index) {
                    self.commit(begun)?;
                }
                return Err(error);
            }
        }
        Ok(())
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
