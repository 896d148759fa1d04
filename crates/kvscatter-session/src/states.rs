//! The states of a decoder beside its caches, such as those of convolutions and recurrent layers.
//!
//! A run reads the whole state of every sample and returns a new one. A sample without tokens keeps its state, and a
//! sample that starts over begins with zeros. A state depends on all rows of a run, so no sample with tokens may be
//! padded.

use std::ops::Range;

use crate::engine::{Session, Step};
use crate::error::SessionError;
use crate::feed::{Feed, SampleFeed};
use crate::interface::{Interface, StatePort};
use crate::tensor::Tensor;

/// The states of a batch. A decoder without states has none.
#[derive(Debug, Default)]
pub struct States {
    ports: Vec<StatePort>,
    /// The states before the next run, `[batch, …]`.
    current: Vec<Tensor>,
    /// The states that the last run returned.
    next: Vec<Tensor>,
}

impl States {
    /// Allocates states of zeros, each twice.
    ///
    /// # Errors
    /// Returns [`SessionError::TensorTooLarge`] if a state cannot be allocated.
    pub fn new(session: &dyn Session, interface: &Interface, batch: usize) -> Result<Self, SessionError> {
        let ports = interface.states.clone();
        let zeros = |port: &StatePort| session.zeros(port.element, &port.shape(batch));
        let current = ports.iter().map(zeros).collect::<Result<_, _>>()?;
        let next = ports.iter().map(zeros).collect::<Result<_, _>>()?;
        Ok(Self { ports, current, next })
    }

    /// Sets the states of each sample whose first token is fed to zero. The first sample of the step has the batch
    /// index `first`.
    pub fn start(&mut self, first: usize, feed: &Feed) {
        for (batch_index, sample) in fed(first, feed) {
            if sample.tokens.start == 0 {
                self.clear(batch_index);
            }
        }
    }

    /// Lets a step read the current states and return the next ones. [`Step::samples`] must be set before.
    pub fn bind<'s>(&'s mut self, step: &mut Step<'s>) {
        let pasts = self.ports.iter().map(|port| port.past.as_str()).zip(&self.current);
        let inputs = if step.samples.is_some() { &mut step.of_batch } else { &mut step.inputs };
        inputs.extend(pasts);
        step.outputs.extend(self.ports.iter().map(|port| port.present.as_str()).zip(&mut self.next));
    }

    /// Takes the states that a step returned for the samples that got tokens. The first sample of the step has the
    /// batch index `first`.
    pub fn take(&mut self, first: usize, feed: &Feed) {
        for (current, next) in self.current.iter_mut().zip(&self.next) {
            for (batch_index, _) in fed(first, feed) {
                let of_sample = of_sample(next, batch_index);
                if let (Some(target), Some(new)) =
                    (current.bytes_mut().get_mut(of_sample.clone()), next.bytes().get(of_sample))
                {
                    target.copy_from_slice(new);
                }
            }
        }
    }

    /// Copies the current states of another batch of the same size.
    pub fn copy_from(&mut self, other: &Self) {
        for (state, other) in self.current.iter_mut().zip(&other.current) {
            state.bytes_mut().copy_from_slice(other.bytes());
        }
    }

    /// Appends the states of a sample to `bytes`.
    pub(crate) fn copy_out(&self, batch_index: usize, bytes: &mut Vec<u8>) {
        for state in 0..self.current.len() {
            bytes.extend_from_slice(self.sample_bytes(state, batch_index));
        }
    }

    /// Sets the states of a sample to those that [`copy_out`](Self::copy_out) appended.
    pub(crate) fn copy_in(&mut self, batch_index: usize, mut bytes: &[u8]) {
        for state in &mut self.current {
            let of_sample = of_sample(state, batch_index);
            let Some((new, rest)) = bytes.split_at_checked(of_sample.len()) else { return };
            if let Some(target) = state.bytes_mut().get_mut(of_sample) {
                target.copy_from_slice(new);
            }
            bytes = rest;
        }
    }

    /// Copies the states of one sample to another.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        for state in &mut self.current {
            let (from, to) = (of_sample(state, from), of_sample(state, to));
            state.bytes_mut().copy_within(from, to.start);
        }
    }

    /// Sets the states of a sample to zero.
    pub(crate) fn clear(&mut self, batch_index: usize) {
        for state in &mut self.current {
            let of_sample = of_sample(state, batch_index);
            if let Some(state) = state.bytes_mut().get_mut(of_sample) {
                state.fill(0);
            }
        }
    }

    /// Returns the current bytes of a sample in the state with this index.
    #[must_use]
    pub fn sample_bytes(&self, state: usize, batch_index: usize) -> &[u8] {
        let state = self.current.get(state);
        let bytes = state.and_then(|state| state.bytes().get(of_sample(state, batch_index)));
        bytes.unwrap_or_default()
    }

    /// Returns the bytes of the state with this index, and the range of a sample.
    pub(crate) fn sample_bytes_mut(
        &mut self,
        state: usize,
        batch_index: usize,
    ) -> Option<(&mut [u8], Range<usize>)> {
        let state = self.current.get_mut(state)?;
        let range = of_sample(state, batch_index);
        Some((state.bytes_mut(), range))
    }
}

/// Returns the samples that get tokens, with their batch indices.
fn fed(first: usize, feed: &Feed) -> impl Iterator<Item = (usize, &SampleFeed)> {
    (first..).zip(&feed.samples).filter(|(_, sample)| !sample.tokens.is_empty())
}

/// Returns the bytes of one sample in a state, `[batch, …]`.
fn of_sample(state: &Tensor, batch_index: usize) -> Range<usize> {
    state.part(&(batch_index..batch_index + 1)).map(|(bytes, _)| bytes).unwrap_or_default()
}
