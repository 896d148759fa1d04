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
    /// Whether the next run returns the columns of the states.
    returns_columns: bool,
    /// The columns that the last run returned for its samples, by state, and the batch index of the first sample.
    columns: (usize, Vec<Tensor>),
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
        Ok(Self { ports, current, next, ..Self::default() })
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
        let columns = self.ports.iter().filter_map(|port| port.columns.as_deref());
        step.returned.extend(columns.filter(|_| self.returns_columns));
    }

    /// Lets the next run return the columns of all states, if the model has outputs with them. Forgets those of the
    /// last run.
    pub(crate) fn return_columns(&mut self, returns: bool) {
        self.columns.1.clear();
        self.returns_columns = returns && self.ports.iter().all(|port| port.columns.is_some());
    }

    /// Takes the columns that a step returned. Its first sample has the batch index `first`.
    ///
    /// # Errors
    /// Returns [`SessionError::ColumnsShape`] for a tensor that is missing or has another shape or type.
    pub(crate) fn take_columns(
        &mut self,
        first: usize,
        feed: &Feed,
        returned: Vec<Tensor>,
    ) -> Result<(), SessionError> {
        let asked = self.ports.iter().filter(|_| self.returns_columns);
        for (index, port) in asked.enumerate() {
            let mut expected = port.shape(feed.samples.len());
            expected.last_mut().into_iter().for_each(|columns| *columns += feed.width);
            let tensor = returned.get(index);
            if tensor.is_none_or(|tensor| tensor.shape() != expected || tensor.element() != port.element) {
                let output = port.columns.clone().unwrap_or_default();
                let element = tensor.map_or(port.element, Tensor::element);
                let shape = tensor.map(Tensor::shape).unwrap_or_default().to_vec();
                return Err(SessionError::ColumnsShape { output, element, shape, expected });
            }
        }
        self.columns = (first, returned);
        Ok(())
    }

    /// Returns the columns that the last run returned for a sample, by state, or `None` if it returned none.
    pub(crate) fn columns(&self, batch_index: usize) -> Option<Vec<&[u8]>> {
        let (first, columns) = &self.columns;
        let index = batch_index.checked_sub(*first).filter(|_| !columns.is_empty())?;
        columns.iter().map(|tensor| tensor.bytes().get(of_sample(tensor, index))).collect()
    }

    /// Sets the states of a sample to those after `tokens` tokens of a run of `width` tokens, whose columns are
    /// `columns`, one state after the other.
    pub(crate) fn set_from_columns(
        &mut self,
        batch_index: usize,
        mut columns: &[u8],
        width: usize,
        tokens: usize,
    ) {
        for (port, state) in self.ports.iter().zip(&mut self.current) {
            let of_sample = of_sample(state, batch_index);
            let &[_, channels, size] = state.shape() else { return };
            let element = port.element.bits().unwrap_or_default() / 8;
            let (row, from_row) = (size * element, (size + width) * element);
            let Some((from, rest)) = columns.split_at_checked(channels * from_row) else { return };
            columns = rest;
            let Some(target) = state.bytes_mut().get_mut(of_sample) else { return };
            if row > 0 {
                for (target, from) in target.chunks_exact_mut(row).zip(from.chunks_exact(from_row)) {
                    let from = from.get(tokens * element..).and_then(|from| from.get(..row));
                    from.into_iter().for_each(|from| target.copy_from_slice(from));
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::States;
    use crate::interface::StatePort;
    use crate::tensor::Tensor;

    /// The state of a convolution whose kernel has one column is empty, but a run returns its new columns.
    #[test]
    fn states_of_several_sizes_follow_from_their_columns() {
        let shapes = [[2, 2, 3], [2, 4, 0], [2, 1, 1]];
        let port = |shape: &[usize; 3]| StatePort {
            past: "past".to_owned(),
            present: "present".to_owned(),
            element: ElementType::Float16,
            inner: shape[1..].iter().copied().map(Some).collect(),
            columns: Some("columns".to_owned()),
        };
        let zeros = |shape: &[usize; 3]| Tensor::zeros(ElementType::Float16, shape).unwrap();
        let mut states = States {
            ports: shapes.iter().map(port).collect(),
            current: shapes.iter().map(zeros).collect(),
            ..States::default()
        };
        let columns: Vec<u16> =
            [10..15, 20..25, 30..32, 40..42, 50..52, 60..62, 70..73].into_iter().flatten().collect();
        states.set_from_columns(1, bytemuck::cast_slice(&columns), 2, 1);
        let of_sample = |state, sample| -> Vec<u16> {
            let halves = states.sample_bytes(state, sample).chunks_exact(2);
            halves.map(|half| u16::from_le_bytes([half[0], half[1]])).collect()
        };
        assert_eq!(of_sample(0, 1), [11, 12, 13, 21, 22, 23]);
        assert_eq!(of_sample(2, 1), [71]);
        assert_eq!((of_sample(0, 0), of_sample(2, 0)), (vec![0; 6], vec![0]));
    }
}
