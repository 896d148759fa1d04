//! Probes: inputs of a decoder that are small enough to evaluate.

use std::collections::BTreeMap;
use std::ops::Range;

use kvscatter::ElementType;

use super::refusal::{ConvertError, ConvertRefusal};
use super::ring::Slots;
use crate::decoder::{Decoder, Input, InputRole, Step, StepInputs};
use crate::fold::{self, Fold, FoldError, Value, Values};
use crate::{Dimension, EvalError, Graph, OnnxError, ValueInfo};

/// The number of samples in a probe if the model does not fix it.
pub(super) const SAMPLES: usize = 3;

/// The number of samples that identifies their axis, if the model does not fix it. It is not a usual number of heads.
pub(super) const UNUSUAL_SAMPLES: usize = 11;

/// The number of new tokens of the probe that fills the last slots, if the model does not fix it. No other probe has
/// larger masks.
pub(super) const LAST: usize = 3;

/// The number of positions of the encoder in a probe, if the model does not fix it.
pub(super) const ENCODER_LENGTH: usize = 14;

/// The ids of blocks in samples of a probe. Each row repeats. The rows have text, blocks next to each other, ids that
/// occur again after other tokens, ids in descending order, one block of all tokens, and ids that narrow types confuse.
pub(super) const BLOCKS: [&[i64]; 5] = [
    &[-1, 0, 0, -1, 1, 1, 1, 2, 2, -1, -1],
    &[3, 3, 2, 2, 2, 1, 0, 0, 5],
    &[0, -1, -1, 0, 0, 4, 4, -1, 4, 7, 7, 0, -1],
    &[6],
    &[16_777_217, 16_777_216, 0, 65_536, 65_536, 256],
];

/// A step in which every sample has `past` cached tokens and `new` new tokens. `padding` marks the tokens that are not
/// real.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) batch: usize,
    pub(super) past: usize,
    pub(super) new: usize,
    /// Whether each token is padding, `[batch, past + new]` in row-major order. It is empty if all tokens are real.
    padding: Vec<bool>,
    /// The id of the block of each token, `[batch, past + new]` in row-major order. It is empty if all tokens are text.
    blocks: Vec<i64>,
}

/// How the distance between two slots is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distance {
    /// Every slot counts.
    Slots,
    /// Only real tokens count, so padding between two slots adds nothing to their distance.
    Tokens,
}

/// The things that a dimension of an input counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DimRole {
    Batch,
    Past,
    New,
    Total,
    /// The positions of the encoder.
    Encoder,
    Known(usize),
}

/// The inputs of a decoder with growing caches, with the meaning of each dimension.
#[derive(Debug)]
pub(super) struct Inputs<'m> {
    inputs: Vec<SizedInput<'m>>,
    /// The index of each input in `inputs`, by name.
    places: BTreeMap<&'m str, usize>,
}

/// One input of the decoder.
#[derive(Debug)]
struct SizedInput<'m> {
    value: ValueInfo<'m>,
    role: InputRole,
    /// The meaning of each dimension.
    lengths: Vec<DimRole>,
}

impl Probe {
    /// Creates a probe in which all tokens are real.
    pub(super) fn new(batch: usize, past: usize, new: usize) -> Self {
        Self { batch, past, new, padding: Vec::new(), blocks: Vec::new() }
    }

    /// Returns the probe with another number of cached tokens, so that it ends with this many tokens.
    pub(super) fn ending(self, total: usize) -> Self {
        Self { past: total.saturating_sub(self.new), ..self }
    }

    /// Returns the probe with as many cached tokens as this number of slots leaves.
    pub(super) fn within(self, slots: usize) -> Self {
        Self { past: self.past.min(slots.saturating_sub(self.new)), ..self }
    }

    /// Returns probes of this size with one padded sample for each of these paddings, in order. Each probe takes as
    /// many paddings as it has samples.
    pub(super) fn each_padded(&self, paddings: &[Vec<Range<usize>>]) -> Vec<Self> {
        let padded = |paddings: &[Vec<_>]| self.clone().padded_in(paddings.iter().map(Vec::as_slice));
        paddings.chunks(self.batch.max(1)).map(padded).collect()
    }

    /// Marks the slots `padding[b]` of each sample `b` as padding.
    pub(super) fn padded(self, padding: &[Range<usize>]) -> Self {
        self.padded_in(padding.iter().map(std::slice::from_ref))
    }

    /// Marks the slots in all ranges of each sample as padding.
    fn padded_in<'p>(mut self, padding: impl Iterator<Item = &'p [Range<usize>]>) -> Self {
        let total = self.total();
        self.padding.resize(self.batch.saturating_mul(total), false);
        for (row, padding) in self.padding.chunks_mut(total.max(1)).zip(padding) {
            for padding in padding {
                row.iter_mut().take(padding.end).skip(padding.start).for_each(|slot| *slot = true);
            }
        }
        self
    }

    /// Gives the tokens of each sample the ids of their blocks. The rows repeat if there are fewer rows than samples,
    /// and each row repeats up to the number of tokens.
    pub(super) fn in_blocks(mut self, rows: &[&[i64]]) -> Self {
        let total = self.total();
        let rows = rows.iter().cycle().take(self.batch);
        self.blocks = rows.flat_map(|row| row.iter().copied().cycle().take(total)).collect();
        self
    }

    /// Returns `true` if two slots contain tokens of one block.
    pub(super) fn share_block(&self, sample: usize, slots: [usize; 2]) -> bool {
        let [first, second] = slots.map(|slot| self.inputs().block(sample, slot));
        first == second && first >= 0
    }

    /// Returns the number of slots in use after this step.
    pub(super) fn total(&self) -> usize {
        self.past.saturating_add(self.new)
    }

    /// Returns the slot of a new token.
    pub(super) fn slot_of(&self, token: usize) -> usize {
        self.past.saturating_add(token)
    }

    /// Returns `true` if a slot of this sample contains a real token.
    pub(super) fn is_real(&self, sample: usize, slot: usize) -> bool {
        self.inputs().is_real(sample, slot)
    }

    /// Returns the position of each slot of a sample: the number of slots before it, or of real tokens. Padding that
    /// does not count has the position of the last real token before it, or -1 if there is none.
    pub(super) fn places(&self, sample: usize, distance: Distance) -> Vec<i64> {
        let mut place = -1_i64;
        let places = (0..self.total()).map(|slot| {
            let counts = distance == Distance::Slots || self.is_real(sample, slot);
            place = place.saturating_add(i64::from(counts));
            place
        });
        places.collect()
    }

    /// Feeds the inputs of the exported decoder to a fold, one evaluation of a graph.
    pub(super) fn feed<'m>(&self, inputs: &Inputs<'m>, fold: &mut Fold<'m>) -> Result<(), OnnxError> {
        for SizedInput { value, role, lengths } in &inputs.inputs {
            let shape: Vec<_> = lengths.iter().map(|&length| self.size(length)).collect();
            let data = self.values(*role, value.element, &shape, self.total());
            fold.set(value.name, Value { element: value.element, shape, data })?;
        }
        Ok(())
    }

    /// Feeds the inputs of the converted graph to a fold: those of the exported decoder, `write_indices`, and the
    /// number of slots in use. The first `past` slots of its caches are in use.
    pub(super) fn feed_static<'m>(
        &self,
        graph: &Graph<'m>,
        write_indices: &str,
        growing: &Inputs<'_>,
        slots: Slots<'_>,
        fold: &mut Fold<'m>,
    ) -> Result<(), OnnxError> {
        for &ValueInfo { name, element, .. } in
            graph.inputs()?.iter().filter(|input| graph.is_input(input.name))
        {
            let Some(SizedInput { role, lengths, .. }) = growing.named(name) else {
                let is_start = name == write_indices;
                let role = if is_start { InputRole::WriteIndices } else { InputRole::NonpadKvSeqlen };
                let (element, shape) = (ElementType::Int64, vec![self.batch]);
                let data = self.inputs().values(role, element, &shape);
                fold.set(name, Value { element, shape, data })?;
                continue;
            };
            let size = |&length| match length {
                DimRole::Past if matches!(role, InputRole::Past(_)) => slots.capacity(name),
                length => self.size(length),
            };
            let shape = match role {
                InputRole::AttentionMask | InputRole::BlockIds => vec![self.batch, slots.max_seq],
                _ => lengths.iter().map(size).collect(),
            };
            let data = self.values(*role, element, &shape, slots.max_seq);
            fold.set(name, Value { element, shape, data })?;
        }
        Ok(())
    }

    /// Marks the slots that are not in use after the step as real, in the mask of a converted graph. Returns `false` if
    /// there are none.
    pub(super) fn feed_unread<'m>(
        &self,
        graph: &Graph<'m>,
        growing: &Inputs<'_>,
        slots: Slots<'_>,
        fold: &mut Fold<'m>,
    ) -> Result<bool, OnnxError> {
        let masks = growing.inputs.iter().filter(|input| input.role == InputRole::AttentionMask);
        let mut is_fed = false;
        for SizedInput { value: ValueInfo { name, element, .. }, .. } in masks {
            if graph.is_input(name) && self.total() < slots.max_seq {
                let (element, shape) = (*element, vec![self.batch, slots.max_seq]);
                let inputs = StepInputs { marks_unused: true, ..self.inputs() };
                let data = inputs.values(InputRole::AttentionMask, element, &shape);
                fold.set(name, Value { element, shape, data })?;
                is_fed = true;
            }
        }
        Ok(is_fed)
    }

    /// Feeds the ids of the blocks of new tokens alone to a converted graph, as sessions do. Returns the input of the
    /// ids, or `None` if the graph has none.
    pub(super) fn feed_new_blocks<'m>(
        &self,
        graph: &Graph<'m>,
        growing: &Inputs<'m>,
        slots: Slots<'_>,
        fold: &mut Fold<'m>,
    ) -> Result<Option<&'m str>, OnnxError> {
        let mut inputs = growing.inputs.iter().filter(|input| input.role == InputRole::BlockIds);
        let input = inputs.next().filter(|input| graph.is_input(input.value.name));
        let Some(SizedInput { value: ValueInfo { name, element, .. }, .. }) = input else { return Ok(None) };
        let mut new = self.clone();
        for row in new.blocks.chunks_mut(self.total().max(1)) {
            row.iter_mut().take(self.past).for_each(|id| *id = -1);
        }
        let (element, shape) = (*element, vec![self.batch, slots.max_seq]);
        let data = new.values(InputRole::BlockIds, element, &shape, slots.max_seq);
        fold.set(name, Value { element, shape, data })?;
        Ok(Some(name))
    }

    /// Returns the error of this probe. If the error shows that a table of masks or positions is too short,
    /// it is wrapped in one that names the number of tokens.
    pub(super) fn error_at_length(&self, cause: OnnxError) -> OnnxError {
        let is_table = matches!(cause.cause(), Some(EvalError::Broadcast { .. }))
            || matches!(cause.cause(), Some(FoldError::Index { .. }));
        match is_table {
            true => ConvertError::Capacity { tokens: self.total(), cause: Box::new(cause) }.into(),
            false => cause,
        }
    }

    fn size(&self, length: DimRole) -> usize {
        match length {
            DimRole::Batch => self.batch,
            DimRole::Past => self.past,
            DimRole::New => self.new,
            DimRole::Total => self.total(),
            DimRole::Encoder => ENCODER_LENGTH,
            DimRole::Known(size) => size,
        }
    }

    /// Returns the elements of an input in this step, or `None` if the decoder gives them no meaning. A mask and ids of
    /// blocks are `[batch, slots]`.
    fn values(&self, role: InputRole, element: ElementType, shape: &[usize], slots: usize) -> Option<Values> {
        match role {
            InputRole::AttentionMask | InputRole::BlockIds => {
                self.inputs().values(role, element, &[self.batch, slots])
            }
            InputRole::PositionIds if *shape == [self.batch, self.new] => {
                self.inputs().values(role, element, shape)
            }
            _ => None,
        }
    }

    fn inputs(&self) -> StepInputs<'_> {
        let step = Step { past: self.past, new: self.new };
        StepInputs { padding: &self.padding, blocks: &self.blocks, ..step.inputs() }
    }
}

impl<'m> Inputs<'m> {
    /// Determines the meaning of every dimension of every input.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::InputShape`] if a dimension does not count the samples, the past tokens, the
    /// new tokens or all tokens.
    pub(super) fn from_decoder(decoder: &Decoder<'m>) -> Result<Self, OnnxError> {
        let mut symbols = BTreeMap::new();
        for input in &decoder.inputs {
            for (axis, length) in roles_lengths(decoder, input).into_iter().enumerate() {
                let symbol = input.value.shape.as_ref().and_then(|shape| shape.get(axis));
                if let (Some(Dimension::Symbolic(symbol)), Some(length)) = (symbol, length) {
                    let other = *symbols.entry(*symbol).or_insert(length);
                    if other != length {
                        let (name, symbol) = (input.value.name.to_owned(), (*symbol).to_owned());
                        return Err(ConvertRefusal::Symbol { name, axis, symbol }.into());
                    }
                }
            }
        }
        // With static caches, a mask has an element for each slot. Rings have fewer slots.
        let is_capacity = |size| {
            let mut linear = decoder.caches.iter().filter(|cache| !cache.is_ring());
            linear.all(|cache| cache.capacity() == Dimension::Known(size))
        };
        let lengths = |input: &Input<'m>| {
            let by_role = roles_lengths(decoder, input);
            let shape = match input.role {
                // Sizes that follow from operators may not be declared.
                InputRole::Past(cache) => decoder.caches.get(cache).map(|cache| cache.known_shape.as_slice()),
                _ => input.value.shape.as_deref(),
            };
            let dims = shape.map_or(by_role.len(), <[_]>::len);
            let length = |axis: usize| match (shape.and_then(|shape| shape.get(axis)), by_role.get(axis)) {
                (Some(&Dimension::Known(size)), Some(Some(DimRole::Total))) if !is_capacity(size) => {
                    let name = input.value.name.to_owned();
                    Err(ConvertRefusal::InputFixed { name, axis, size }.into())
                }
                (Some(&Dimension::Known(size)), _) => Ok(DimRole::Known(size)),
                (_, Some(&Some(length))) => Ok(length),
                (Some(Dimension::Symbolic(symbol)), _) if symbols.contains_key(symbol) => {
                    Ok(symbols.get(symbol).copied().unwrap_or(DimRole::Batch))
                }
                _ if matches!(input.role, InputRole::Encoder(_)) || decoder.is_unread(input.value.name) => {
                    Ok(match axis {
                        0 => DimRole::Batch,
                        _ => DimRole::Encoder,
                    })
                }
                _ => Err(ConvertRefusal::InputShape { name: input.value.name.to_owned(), axis }.into()),
            };
            (0..dims).map(length).collect::<Result<Vec<_>, OnnxError>>()
        };
        let input = |input: &Input<'m>| {
            Ok(SizedInput { value: input.value.clone(), role: input.role, lengths: lengths(input)? })
        };
        let places = decoder.inputs.iter().enumerate().map(|(at, input)| (input.value.name, at)).collect();
        Ok(Self { inputs: decoder.inputs.iter().map(input).collect::<Result<_, OnnxError>>()?, places })
    }

    /// Determines the meaning of every dimension like [`from_decoder`](Self::from_decoder), and checks that probes with
    /// this many slots are small enough to evaluate.
    ///
    /// # Errors
    /// Returns the errors of [`from_decoder`](Self::from_decoder) and [`check_size`](Self::check_size).
    pub(super) fn checked(decoder: &Decoder<'m>, max_seq: usize) -> Result<Self, OnnxError> {
        let inputs = Self::from_decoder(decoder)?;
        inputs.check_size(max_seq)?;
        Ok(inputs)
    }

    /// Returns a probe with this many cached tokens, and with these numbers of samples and of new tokens where the
    /// model leaves them open.
    pub(super) fn probe(&self, samples: usize, past: usize, new: usize) -> Probe {
        Probe::new(self.batch().unwrap_or(samples), past, self.new_tokens().unwrap_or(new))
    }

    /// Returns `true` if the decoder takes the ids of blocks.
    pub(super) fn have_blocks(&self) -> bool {
        self.inputs.iter().any(|input| input.role == InputRole::BlockIds)
    }

    /// Puts tokens of a probe in blocks, if the decoder takes their ids.
    pub(super) fn with_blocks(&self, probe: Probe) -> Probe {
        if self.have_blocks() { probe.in_blocks(&BLOCKS) } else { probe }
    }

    fn named(&self, name: &str) -> Option<&SizedInput<'m>> {
        self.inputs.get(*self.places.get(name)?)
    }

    /// Checks that probes with this many slots are small enough to evaluate.
    ///
    /// The check comes before the first allocation because the sizes come from an untrusted file.
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::NewTokens`] if a step has more new tokens than slots.
    /// * Returns [`ConvertRefusal::MaskSize`] if the masks would have too many elements.
    fn check_size(&self, max_seq: usize) -> Result<(), OnnxError> {
        if let Some(new) = self.new_tokens().filter(|new| *new > max_seq) {
            return Err(ConvertRefusal::NewTokens { new, max_seq }.into());
        }
        if self.fits(max_seq) {
            return Ok(());
        }
        let Probe { batch, new, .. } = self.last();
        Err(ConvertRefusal::MaskSize { batch, new, max_seq, limit: fold::MAX_VALUES }.into())
    }

    /// Returns `true` if the masks of a step with this many slots are small enough to evaluate.
    pub(super) fn fits(&self, slots: usize) -> bool {
        let Probe { batch, new, .. } = self.last();
        // A mask of real tokens has a row for each sample, even if no token is new.
        let size = batch.checked_mul(new.max(1)).and_then(|rows| rows.checked_mul(slots));
        size.is_some_and(|size| size <= fold::MAX_VALUES)
    }

    /// Returns a probe with the samples and the new tokens of that which fills the last slots.
    fn last(&self) -> Probe {
        self.probe(SAMPLES, 0, LAST)
    }

    /// Returns the size of the batch if the model fixes it.
    pub(super) fn batch(&self) -> Option<usize> {
        self.known(|role| matches!(role, InputRole::Past(_)), 0)
    }

    /// Returns the size of the batch if an input other than a cache fixes it.
    pub(super) fn samples(&self) -> Option<usize> {
        self.known(|role| !matches!(role, InputRole::Past(_)), 0)
    }

    /// Returns the number of new tokens if the model fixes it.
    pub(super) fn new_tokens(&self) -> Option<usize> {
        self.known(|role| role.is_tokens() || *role == InputRole::PositionIds, 1)
    }

    /// Returns an input, and the axis of it whose size is the number of new tokens.
    pub(super) fn counts_new_tokens(&self) -> Option<(&'m str, usize)> {
        let axis = |input: &SizedInput<'_>| input.lengths.iter().position(|&length| length == DimRole::New);
        self.inputs.iter().find_map(|input| Some((input.value.name, axis(input)?)))
    }

    fn known(&self, is: impl Fn(&InputRole) -> bool, axis: usize) -> Option<usize> {
        let known = |input: &SizedInput<'_>| match input.lengths.get(axis) {
            Some(&DimRole::Known(size)) => Some(size),
            _ => None,
        };
        self.inputs.iter().filter(|input| is(&input.role)).find_map(known)
    }
}

/// Returns the meaning of each dimension of an input, as far as the role of the input determines it.
fn roles_lengths(decoder: &Decoder<'_>, Input { value, role }: &Input<'_>) -> Vec<Option<DimRole>> {
    let by_token = |length| match value.shape.as_ref().map(Vec::len) {
        None | Some(2) => vec![Some(DimRole::Batch), Some(length)],
        Some(_) => Vec::new(),
    };
    match *role {
        InputRole::Past(cache) => {
            let Some(cache) = decoder.caches.get(cache) else { return Vec::new() };
            let length = |axis| match axis {
                0 => Some(DimRole::Batch),
                axis if axis == cache.axis => Some(DimRole::Past),
                _ => None,
            };
            (0..cache.past_shape.len()).map(length).collect()
        }
        InputRole::State(state) => {
            let rank = decoder.states.get(state).map_or(0, |state| state.shape.len());
            (0..rank).map(|axis| (axis == 0).then_some(DimRole::Batch)).collect()
        }
        InputRole::TokenIds | InputRole::PositionIds => by_token(DimRole::New),
        InputRole::Embeddings => vec![Some(DimRole::Batch), Some(DimRole::New), None],
        InputRole::AttentionMask | InputRole::BlockIds => by_token(DimRole::Total),
        _ => Vec::new(),
    }
}
