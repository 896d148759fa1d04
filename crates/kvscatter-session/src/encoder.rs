//! The inputs of a decoder that an encoder computes once for each text: keys and values, or states, and their mask.
//!
//! The inputs of all samples are in tensors of the whole batch, so that no step copies them. A sample that is copied to
//! a batch index with the same text, such as a beam, copies nothing either.

use std::ops::Range;

use crate::engine::Session;
use crate::error::SessionError;
use crate::interface::{EncoderPort, Interface};
use crate::memory_report::bytes;
use crate::rows::Rows;
use crate::sample::Sample;
use crate::tensor::Tensor;

/// The inputs from an encoder of all samples of a batch.
#[derive(Debug, Default)]
pub struct EncoderInputs {
    ports: Vec<EncoderPort>,
    /// The name and the tensor of each input, `[batch, …, length, …]`. There are none before the first text.
    tensors: Vec<(String, Tensor)>,
    /// The number of positions for which each tensor has room.
    lengths: Vec<usize>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text {
    number: usize,
    /// The number of its positions in each input. A mask may mark the positions before the encoder shortens them.
    lengths: Vec<usize>,
    /// Whether the caller has given the mask of the positions.
    has_mask: bool,
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

    /// Checks that this many bytes may be allocated. `None` is more than the type can count.
    pub(crate) fn check_size(&self, needed: Option<u64>) -> Result<(), SessionError> {
        match needed.filter(|needed| *needed <= self.limit) {
            Some(_) => Ok(()),
            None => Err(SessionError::MemoryLimit { needed, limit: self.limit }),
        }
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
    /// positions are real, and all texts of the batch have one length.
    ///
    /// # Errors
    /// Returns these errors before a byte changes.
    ///
    /// - Returns [`SessionError::EncoderOutput`], [`SessionError::EncoderOutputMissing`] or
    ///   [`SessionError::EncoderShape`] for outputs that the decoder does not take.
    /// - Returns [`SessionError::EncoderLength`] if another sample has another number of positions, and one of them has
    ///   no mask.
    /// - Returns [`SessionError::MemoryLimit`] or [`SessionError::TensorTooLarge`] if there is no memory.
    pub fn set(
        &mut self,
        session: &dyn Session,
        batch_index: usize,
        outputs: &[(&str, &Tensor)],
    ) -> Result<(), SessionError> {
        let lengths = text_lengths(&self.ports, outputs)?;
        let is_given = |port: &EncoderPort| outputs.iter().any(|(name, _)| *name == port.name);
        let has_mask = self.ports.iter().any(|port| port.is_mask() && is_given(port));
        self.count += 1;
        let text = Text { number: self.count, lengths: lengths.clone(), has_mask };
        self.make_room(session, batch_index, &text)?;
        let ports = self.ports.iter().zip(lengths.iter().zip(&self.lengths));
        for ((port, (&length, &room)), (_, tensor)) in ports.zip(&mut self.tensors) {
            let rows = Rows::of_encoder(port, room);
            zero(tensor, rows, batch_index, length..room);
            match outputs.iter().find(|(name, _)| *name == port.name) {
                Some((_, output)) => {
                    copy(output, (Rows::of_encoder(port, length), 0), tensor, (rows, batch_index), length)
                }
                None => {
                    let first = batch_index * room;
                    tensor.fill(first..first + length, 1)?;
                }
            }
        }
        self.give(batch_index, text);
        Ok(())
    }

    /// Gives a sample the inputs of another one. Copies nothing if its batch index has them already.
    pub(crate) fn copy_sample(&mut self, from: usize, to: usize) {
        let Some(Some(text)) = self.texts.get(from).filter(|_| self.has(from)).cloned() else { return };
        if self.texts.get(to).and_then(Option::as_ref) != Some(&text) {
            for ((port, &room), (_, tensor)) in self.ports.iter().zip(&self.lengths).zip(&mut self.tensors) {
                let rows = Rows::of_encoder(port, room);
                let runs = rows.runs(from, 0..room).zip(rows.runs(to, 0..room));
                runs.for_each(|(from, to)| tensor.bytes_mut().copy_within(from, to.start));
            }
        }
        self.give(to, text);
    }

    /// Returns each input, and the number of positions that a sample has in it. There are none if the sample has no
    /// text.
    pub(crate) fn of_sample(&self, batch_index: usize) -> impl Iterator<Item = (&EncoderPort, usize)> {
        let text = self.texts.get(batch_index).and_then(Option::as_ref).filter(|_| self.has(batch_index));
        self.ports.iter().zip(text.map_or(&[][..], |text| &text.lengths).iter().copied())
    }

    /// Calls a function with the positions of a sample in the input with this index, in order.
    pub(crate) fn visit<E>(
        &self,
        input: usize,
        batch_index: usize,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (Some((port, length)), Some((_, tensor)), Some(&room)) =
            (self.of_sample(batch_index).nth(input), self.tensors.get(input), self.lengths.get(input))
        else {
            return Ok(());
        };
        let mut runs = Rows::of_encoder(port, room).runs(batch_index, 0..length);
        runs.try_for_each(|run| visit(tensor.bytes().get(run).unwrap_or_default()))
    }

    /// Records the text that a sample attends to from now on.
    fn give(&mut self, batch_index: usize, text: Text) {
        if let (Some(of), Some(is_given)) =
            (self.texts.get_mut(batch_index), self.is_given.get_mut(batch_index))
        {
            (*of, *is_given) = (Some(text), true);
        }
    }

    fn has(&self, batch_index: usize) -> bool {
        self.is_given.get(batch_index).copied().unwrap_or_default()
    }

    /// Makes the tensors long enough for a new text at `batch_index` and for the texts of the other samples.
    fn make_room(
        &mut self,
        session: &dyn Session,
        batch_index: usize,
        new: &Text,
    ) -> Result<(), SessionError> {
        let others = self.texts.iter().enumerate();
        let others = others.filter(|(index, _)| *index != batch_index && self.has(*index));
        let mut needed = new.lengths.clone();
        for text in others.filter_map(|(_, text)| text.as_ref()) {
            let are_masked = new.has_mask && text.has_mask;
            let lengths = new.lengths.iter().zip(&text.lengths).zip(&mut needed);
            for (port, ((&got, &expected), needed)) in self.ports.iter().zip(lengths) {
                if got != expected && !are_masked {
                    return Err(SessionError::EncoderLength { input: port.name.clone(), got, expected });
                }
                *needed = expected.max(*needed);
            }
        }
        if needed == self.lengths {
            return Ok(());
        }
        let batch = self.texts.len();
        let shapes: Vec<_> =
            self.ports.iter().zip(&needed).map(|(port, length)| port.shape(batch, *length)).collect();
        let mut sizes = self.ports.iter().zip(&shapes).map(|(port, shape)| port.element.storage_len(shape));
        self.check_size(sizes.try_fold(0_u64, |sum, size| sum.checked_add(bytes(size?))))?;
        let mut tensors = Vec::with_capacity(shapes.len());
        for (port, shape) in self.ports.iter().zip(&shapes) {
            tensors.push((port.name.clone(), session.zeros(port.element, shape)?));
        }
        let rooms = self.lengths.iter().zip(&needed);
        let tensors_of = self.tensors.iter().zip(&mut tensors);
        for ((port, (&before, &after)), ((_, old), (_, new))) in self.ports.iter().zip(rooms).zip(tensors_of)
        {
            let [from, to] = [before, after].map(|room| Rows::of_encoder(port, room));
            for index in (0..batch).filter(|index| self.has(*index)) {
                copy(old, (from, index), new, (to, index), before.min(after));
            }
        }
        // Batch indices without a sample have no text any more.
        for (text, is_given) in self.texts.iter_mut().zip(&self.is_given) {
            text.take_if(|_| !*is_given);
        }
        (self.tensors, self.lengths) = (tensors, needed);
        Ok(())
    }
}

/// Checks what an encoder has computed, and returns the number of positions in each input. Only the mask may be absent.
fn text_lengths(ports: &[EncoderPort], outputs: &[(&str, &Tensor)]) -> Result<Vec<usize>, SessionError> {
    let names = || ports.iter().map(|port| port.name.clone()).collect();
    for (index, (name, _)) in outputs.iter().enumerate() {
        let is_twice = outputs.iter().take(index).any(|(other, _)| other == name);
        if is_twice || !ports.iter().any(|port| port.name == *name) {
            return Err(SessionError::EncoderOutput { output: (*name).to_owned(), inputs: names() });
        }
    }
    let output = |port: &EncoderPort| outputs.iter().find(|(name, _)| *name == port.name);
    let mut lengths = Vec::with_capacity(ports.len());
    let of_states = ports.iter().filter(|port| !port.is_mask()).find_map(output);
    let length = of_states
        .and_then(|(name, output)| ports.iter().find(|port| port.name == *name)?.length_of(output.shape()));
    for port in ports {
        let Some((_, output)) = output(port) else {
            if port.is_mask() {
                lengths.push(length.unwrap_or_default());
                continue;
            }
            return Err(SessionError::EncoderOutputMissing { input: port.name.clone() });
        };
        let got = port.length_of(output.shape()).filter(|got| *got > 0);
        // A decoder may shorten the mask as the encoder shortens its positions.
        let fits = |got: usize, length: usize| if port.is_mask() { got >= length } else { got == length };
        let got = got.filter(|got| length.is_none_or(|length| fits(*got, length)));
        match got.filter(|_| output.element() == port.element) {
            Some(got) => lengths.push(got),
            None => {
                return Err(SessionError::EncoderShape {
                    input: port.name.clone(),
                    element: output.element(),
                    shape: output.shape().to_vec(),
                    expected: port.described(length),
                });
            }
        }
    }
    Ok(lengths)
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
