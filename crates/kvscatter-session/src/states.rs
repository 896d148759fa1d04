//! The states of a decoder beside its caches, such as those of convolutions and recurrent layers.
//!
//! A run reads the whole state of every sample and returns a new one. A sample without tokens keeps its state, and a
//! sample that starts over begins with zeros.

use std::ops::Range;

use crate::model_runs::ModelRun;
use crate::tensor::Tensor;

/// The states of a batch.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// The states before the next run, `[batch, …]`.
    current: Vec<Tensor>,
    /// The states that the last run returned.
    next: Vec<Tensor>,
}

impl States {
    /// Takes two tensors for each state, both of zeros.
    pub(crate) fn new(current: Vec<Tensor>, next: Vec<Tensor>) -> Self {
        Self { current, next }
    }

    /// Returns the states before a run, and the tensors for the states after it.
    pub(crate) fn of_run(&mut self) -> (&[Tensor], &mut [Tensor]) {
        (&self.current, &mut self.next)
    }

    /// Sets the states of the samples to zero whose first token is fed.
    pub(crate) fn start(&mut self, run: &ModelRun) {
        for (batch_index, sample) in run.fed() {
            if !sample.tokens.is_empty() && sample.tokens.start == 0 {
                self.clear(batch_index);
            }
        }
    }

    /// Takes the new states of the samples that got tokens.
    pub(crate) fn take(&mut self, run: &ModelRun) {
        for (current, next) in self.current.iter_mut().zip(&self.next) {
            for (batch_index, sample) in run.fed() {
                let of_sample = of_sample(next, batch_index);
                if !sample.tokens.is_empty()
                    && let (Some(target), Some(new)) =
                        (current.bytes_mut().get_mut(of_sample.clone()), next.bytes().get(of_sample))
                {
                    target.copy_from_slice(new);
                }
            }
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

    /// Returns the bytes of a sample in the state with this index.
    pub(crate) fn sample_bytes(&self, state: usize, batch_index: usize) -> &[u8] {
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

/// Returns the bytes of one sample in a state, `[batch, …]`.
fn of_sample(state: &Tensor, batch_index: usize) -> Range<usize> {
    state.part(&(batch_index..batch_index + 1)).map(|(bytes, _)| bytes).unwrap_or_default()
}
