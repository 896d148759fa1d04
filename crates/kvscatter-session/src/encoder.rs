//! The inputs of a decoder that an encoder computes once for each text: keys and values, or states, and their mask.
//!
//! The inputs of all samples are in tensors of the whole batch, so that no step copies them. A sample that is copied to
//! a batch index with the same text, such as a beam, copies nothing either.

use std::ops::Range;

use crate::error::SessionError;
use crate::interface::{EncoderPort, Interface};
use crate::memory_report::bytes;
use crate::rows::Rows;
use crate::runner::Runner;
use crate::sample::Sample;
use crate::tensor::Tensor;

/// The inputs from an encoder of all samples of a batch.
#[derive(Debug, Default)]
pub struct EncoderInputs {
    ports: Vec<EncoderPort>,
    /// The name and the tensor of each input, `[batch, …, length, …]`. There are none before the first text.
    tensors: Vec<(String, Tensor)>,
    /// The number of positions for which the tensors have room.
    length: usize,
    /// The text whose inputs each batch index has.
    texts: Vec<Option<Text>>,
    /// Whether the sample at a batch index attends to the text there.
    is_given: Vec<bool>,
    /// The number of texts so far.
    count: usize,
    /// The maximum number of bytes of the tensors.
    limit: u64,
}

/// A text that an encoder has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    number: usize,
    /// The number of its positions.
    length: usize,
}

impl EncoderInputs {
    /// Creates the inputs of an empty batch, whose tensors may take `limit` bytes.
    #[must_use]
    pub fn new(interface: &Interface, batch: usize, limit: u64) -> Self {
        let ports = interface.encoder.clone();
        Self { ports, texts: vec![None; batch], is_given: vec![false; batch], limit, ..Self::default() }
    }

    /// Returns the name and the tensor of each input, of the whole batch.
    #[must_use]
    pub fn tensors(&self) -> &[(String, Tensor)] {
        &self.tensors
    }

    /// Returns the number of bytes of the tensors.
    pub(crate) fn bytes(&self) -> u64 {
        bytes(self.tensors.iter().map(|(_, tensor)| tensor.len()).sum())
    }

    /// Checks that a sample has its inputs.
    pub(crate) fn check(&self, sample: Sample) -> Result<(), SessionError> {
        match self.ports.first() {
            Some(port) if !self.has(sample.batch_index()) => {
                Err(SessionError::EncoderMissing { sample, input: port.name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Lets the new sample at a batch index attend to nothing.
    pub(crate) fn forget(&mut self, batch_index: usize) {
        self.is_given.get_mut(batch_index).into_iter().for_each(|given| *given = false);
    }

    /// Gives a sample what an encoder has computed for its text, each tensor with a batch of 1. Without a mask, all
    /// positions are real.
    ///
    /// # Errors
    /// Returns these errors before a byte changes.
    ///
    /// - Returns [`SessionError::EncoderOutput`], [`SessionError::EncoderOutputMissing`] or
    ///   [`SessionError::EncoderShape`] for outputs that the decoder does not take.
    /// - Returns [`SessionError::EncoderLength`] if another sample has another number of positions, and the decoder
    ///   takes no mask.
    /// - Returns [`SessionError::MemoryLimit`] or [`SessionError::TensorTooLarge`] if there is no memory.
    pub fn set(
        &mut self,
        runner: &Runner,
        batch_index: usize,
        outputs: &[(&str, &Tensor)],
    ) -> Result<(), SessionError> {
        let length = text_length(&self.ports, outputs)?;
        self.make_room(runner, batch_index, length)?;
        for (port, (_, tensor)) in self.ports.iter().zip(&mut self.tensors) {
            let rows = Rows::of_encoder(port, self.length);
            zero(tensor, rows, batch_index, length..self.length);
            match outputs.iter().find(|(name, _)| *name == port.name) {
                Some((_, output)) => {
                    copy(output, (Rows::of_encoder(port, length), 0), tensor, (rows, batch_index), length)
                }
                None => {
                    let first = batch_index * self.length;
                    tensor.fill(first..first + length, 1)?;
                }
            }
        }
        self.count += 1;
        let text = Text { number: self.count, length };
        self.texts.get_mut(batch_index).into_iter().for_each(|of| *of = Some(text));
        self.is_given.get_mut(batch_index).into_iter().for_each(|given| *given = true);
        Ok(())
    }

    /// Gives a sample the inputs of another one. Copies nothing if its batch index has them already.
    pub(crate) fn copy_sample(&mut self, from: usize, to: usize) {
        let Some(&Some(text)) = self.texts.get(from).filter(|_| self.has(from)) else { return };
        if self.texts.get(to) != Some(&Some(text)) {
            for (port, (_, tensor)) in self.ports.iter().zip(&mut self.tensors) {
                let rows = Rows::of_encoder(port, self.length);
                let runs = rows.runs(from, 0..self.length).zip(rows.runs(to, 0..self.length));
                runs.for_each(|(from, to)| tensor.bytes_mut().copy_within(from, to.start));
            }
        }
        self.texts.get_mut(to).into_iter().for_each(|of| *of = Some(text));
        self.is_given.get_mut(to).into_iter().for_each(|given| *given = true);
    }

    /// Returns the inputs, and the number of positions that a sample has in them.
    pub(crate) fn of_sample(&self, batch_index: usize) -> (&[EncoderPort], usize) {
        let text = self.texts.get(batch_index).copied().flatten().filter(|_| self.has(batch_index));
        (&self.ports, text.map_or(0, |text| text.length))
    }

    /// Calls a function with the positions of a sample in the input with this index, in order.
    pub(crate) fn visit<E>(
        &self,
        input: usize,
        batch_index: usize,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (_, length) = self.of_sample(batch_index);
        let (Some(port), Some((_, tensor))) = (self.ports.get(input), self.tensors.get(input)) else {
            return Ok(());
        };
        let mut runs = Rows::of_encoder(port, self.length).runs(batch_index, 0..length);
        runs.try_for_each(|run| visit(tensor.bytes().get(run).unwrap_or_default()))
    }

    fn has(&self, batch_index: usize) -> bool {
        self.is_given.get(batch_index).copied().unwrap_or_default()
    }

    /// Makes the tensors as long as the longest text of the batch, which is `length` for one of the samples.
    fn make_room(&mut self, runner: &Runner, batch_index: usize, length: usize) -> Result<(), SessionError> {
        let others = self.texts.iter().enumerate();
        let others = others.filter(|(index, _)| *index != batch_index && self.has(*index));
        let longest = others.filter_map(|(_, text)| Some(text.as_ref()?.length)).max();
        if let (Some(expected), Some(port), false) =
            (longest.filter(|expected| *expected != length), self.ports.first(), self.has_mask())
        {
            return Err(SessionError::EncoderLength { input: port.name.clone(), got: length, expected });
        }
        let needed = longest.unwrap_or_default().max(length);
        if needed == self.length {
            return Ok(());
        }
        let (batch, kept) = (self.texts.len(), self.length.min(needed));
        let shapes: Vec<_> = self.ports.iter().map(|port| port.shape(batch, needed)).collect();
        let sizes = self.ports.iter().zip(&shapes).map(|(port, shape)| port.element.storage_len(shape));
        let size = sizes.fold(Some(0_u64), |sum, size| sum?.checked_add(bytes(size?)));
        if size.is_none_or(|size| size > self.limit) {
            return Err(SessionError::MemoryLimit { needed: size, limit: self.limit });
        }
        let mut tensors = Vec::with_capacity(shapes.len());
        for (port, shape) in self.ports.iter().zip(&shapes) {
            tensors.push((port.name.clone(), runner.zeros(port.element, shape)?));
        }
        for ((port, (_, before)), (_, after)) in self.ports.iter().zip(&self.tensors).zip(&mut tensors) {
            let rows = [self.length, needed].map(|length| Rows::of_encoder(port, length));
            for index in (0..batch).filter(|index| self.is_given.get(*index) == Some(&true)) {
                copy(before, (rows[0], index), after, (rows[1], index), kept);
            }
        }
        // Batch indices without a sample have no text any more.
        for (text, is_given) in self.texts.iter_mut().zip(&self.is_given) {
            *text = text.filter(|_| *is_given);
        }
        (self.tensors, self.length) = (tensors, needed);
        Ok(())
    }

    fn has_mask(&self) -> bool {
        self.ports.iter().any(EncoderPort::is_mask)
    }
}

/// Checks what an encoder has computed, and returns the number of its positions. Only the mask may be absent.
fn text_length(ports: &[EncoderPort], outputs: &[(&str, &Tensor)]) -> Result<usize, SessionError> {
    let names = || ports.iter().map(|port| port.name.clone()).collect();
    for (index, (name, _)) in outputs.iter().enumerate() {
        let is_twice = outputs.iter().take(index).any(|(other, _)| other == name);
        if is_twice || !ports.iter().any(|port| port.name == *name) {
            return Err(SessionError::EncoderOutput { output: (*name).to_owned(), inputs: names() });
        }
    }
    let mut length = None;
    for port in ports {
        let Some((_, output)) = outputs.iter().find(|(name, _)| *name == port.name) else {
            if port.is_mask() {
                continue;
            }
            return Err(SessionError::EncoderOutputMissing { input: port.name.clone() });
        };
        let got = port.length_of(output.shape());
        let is_same = length.is_none_or(|length| got == Some(length));
        if output.element() != port.element || got.is_none_or(|got| got == 0) || !is_same {
            return Err(SessionError::EncoderShape {
                input: port.name.clone(),
                element: output.element(),
                shape: output.shape().to_vec(),
                expected: port.described(length),
            });
        }
        length = got;
    }
    Ok(length.unwrap_or_default())
}

/// Copies the first `length` positions of a sample to a sample of another tensor.
fn copy(from: &Tensor, source: (Rows, usize), to: &mut Tensor, target: (Rows, usize), length: usize) {
    let runs = |(rows, index): (Rows, usize)| rows.runs(index, 0..length);
    for (source, target) in runs(source).zip(runs(target)) {
        if let (Some(new), Some(old)) = (from.bytes().get(source), to.bytes_mut().get_mut(target)) {
            old.copy_from_slice(new);
        }
    }
}

fn zero(tensor: &mut Tensor, rows: Rows, batch_index: usize, positions: Range<usize>) {
    for run in rows.runs(batch_index, positions) {
        tensor.bytes_mut().get_mut(run).into_iter().for_each(|stale| stale.fill(0));
    }
}
