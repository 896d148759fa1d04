//! The inputs and outputs of a decoder, the values that each input is fed, and the sizes that are known.

use std::collections::BTreeMap;

use kvscatter::ElementType;
use kvscatter_onnx::convert::{MOST_TOKENS, RingSize};
use kvscatter_onnx::decoder::{Cache, Decoder, EncoderPart, Growth, Input, InputRole, State};
use kvscatter_onnx::{DECODER, Dimension, Model, ValueInfo};

use crate::error::{ModelSize, SessionError, SessionSetting};

/// The id of a block that marks text.
pub(crate) const TEXT: i64 = -1;

/// A decoder's inputs and outputs.
#[derive(Clone, Debug)]
pub struct Interface {
    /// All caches, in the order of the model's inputs.
    pub caches: Vec<CachePort>,
    /// The states beside the caches, in the order of the model's inputs.
    pub states: Vec<StatePort>,
    /// The inputs that an encoder computes once for each text, in the order of the model's inputs.
    pub encoder: Vec<EncoderPort>,
    /// All other inputs, in the order of the model's inputs.
    pub feeds: Vec<FeedPort>,
    /// The name of the output with the logits, `[batch, tokens or 1, vocabulary]`.
    pub logits: String,
    /// The element type of the logits.
    pub logits_element: ElementType,
    /// The number of tokens in the vocabulary, or `None` if the model does not declare it.
    pub vocabulary: Option<usize>,
    /// Whether the model returns logits only for the last token of each sample.
    pub last_logits_only: bool,
    /// The number of samples in a batch, or `None` if the model leaves it open.
    pub batch: Option<usize>,
    /// Whether the model takes exactly one token of each sample in a run.
    pub is_decode_only: bool,
    /// Whether the operator that writes the caches refuses samples that are padded on the right.
    pub refuses_padding: bool,
    /// The number of tokens that a sample can have if all caches are rings, as the model's metadata declares it.
    pub most_tokens: Option<usize>,
    /// The hash of the exported decoder, if the model was converted from one. Its encoder may name it, too.
    pub exported: Option<String>,
    /// Whether the model has weights of at most 8 bits. Several rows of a run then share less of its cost.
    pub has_quantised_weights: bool,
}

/// The operator that writes all caches of a model in place. It determines the runs that the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheWriter {
    /// `TensorScatter`. A run writes its rows from any slot of each sample.
    TensorScatter,
    /// ONNX Runtime's `GroupQueryAttention`, with past and present in one buffer.
    ///
    /// A run of several tokens is a first run, or it has one sample. A first run writes from slot 0 of every
    /// sample, and may be padded on the right.
    GroupQueryAttention,
}

/// The input and the output of a cache.
#[derive(Clone, Debug)]
pub struct CachePort {
    /// The name of the input.
    pub past: String,
    /// The name of the output.
    pub present: String,
    /// The element type of input and output.
    pub element: ElementType,
    /// The index of the sequence dimension, counted from 0.
    pub axis: usize,
    /// The index of the layer, counted from 0. Keys, values, and the scales of each are counted separately.
    pub layer: usize,
    /// The dimensions of past, including those that follow from weights and attributes. Open dimensions are
    /// `None`.
    pub dims: Vec<Option<usize>>,
    /// How the cache grows if past and present are separate buffers, or `None` for a static cache.
    pub growth: Option<Growth>,
    /// The size of the ring, or `None` for a linear cache. A ring of a model that does not declare its window counts
    /// as a linear cache, which ends with its last slot.
    pub ring: Option<RingSize>,
}

/// The input and the output of a state, such as that of a convolution. A run reads all of it and returns a new one.
#[derive(Clone, Debug)]
pub struct StatePort {
    /// The name of the input.
    pub past: String,
    /// The name of the output.
    pub present: String,
    /// The element type of input and output.
    pub element: ElementType,
    /// The dimensions after the batch. Open dimensions are `None`.
    pub inner: Vec<Option<usize>>,
    /// The name of the output with the columns of a convolution's state and of the new tokens, if the model has it. See
    /// [`State::columns`].
    pub columns: Option<String>,
}

/// An input that an encoder computes once for each text. No step changes it.
#[derive(Clone, Debug)]
pub struct EncoderPort {
    /// The name of the input.
    pub name: String,
    /// The element type of the input.
    pub element: ElementType,
    /// What the input contains.
    pub part: EncoderPart,
    /// The index of the dimension with the positions of the encoder, counted from 0.
    pub axis: usize,
    /// The dimensions. Open dimensions are `None`.
    pub dims: Vec<Option<usize>>,
}

/// An input that an engine is fed in every step, and that is neither a cache nor a state.
#[derive(Clone, Debug)]
pub struct FeedPort {
    /// The name of the input.
    pub name: String,
    /// The element type of the input.
    pub element: ElementType,
    /// The dimensions. Open dimensions are `None`.
    pub dims: Vec<Option<usize>>,
    /// The values that the input is fed.
    pub purpose: Purpose,
}

/// The kind of values that an input is fed.
///
/// Most purposes correspond to an [`InputRole`]. Pasts, states, inputs from an encoder and `Other` have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The token ids, `[batch, tokens]`.
    Tokens,
    /// The embeddings of the tokens, `[batch, tokens, size]`, in place of token ids.
    Embeddings {
        /// The size of an embedding.
        size: usize,
    },
    /// The positions of the tokens, `[batch, tokens]`.
    Positions,
    /// The position of the first new token, `[]`, or of each, `[tokens]`. All samples have the same positions, and a
    /// step has no padding.
    SharedPositions,
    /// The mask, `[batch, slots]`. It is 1 for slots that contain a token, and 0 for padding and unwritten
    /// slots.
    Mask,
    /// A mask from which the model computes the lengths for `GroupQueryAttention`, `[batch, slots]`. It has as
    /// many slots as the longest sample after the write, and is 1 for the slots up to the length of a sample.
    LengthMask,
    /// The ids of blocks, `[batch, slots]`. Tokens with the same id see each other. Text and unwritten slots have -1,
    /// and so do the tokens of earlier steps, because all tokens of a block are fed in one step.
    BlockIds,
    /// The first slot written for each sample, `[batch]`.
    WriteIndices,
    /// The length of each sample after the write, `[batch]`. Padding on the right is included.
    NonpadKvSeqlen,
    /// The length of each sample after the write, less 1, `[batch]` or `[batch, 1]`.
    SeqlensK,
    /// The longest length after the write, a single number.
    TotalLength,
    /// Zeros, because no node reads the input. If the model leaves the first dimension open, it is the number of
    /// samples. Other open dimensions are 1.
    Unread,
    /// The condition that chooses the decoder with a past in a [merged decoder](crate::ExportedDecoder).
    Condition(bool),
}

impl Purpose {
    /// Returns `true` for inputs with an element for each slot of a batch. Only some of their elements change in a
    /// step.
    pub(crate) fn is_by_slot(self) -> bool {
        matches!(self, Self::Mask | Self::BlockIds)
    }

    /// Returns `true` for the token ids, and for the embeddings in their place.
    #[must_use]
    pub fn is_tokens(self) -> bool {
        matches!(self, Self::Tokens | Self::Embeddings { .. })
    }
}

impl Interface {
    /// Determines a decoder's inputs and outputs from its graph.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoLogits`] if no output looks like logits.
    /// - Returns [`SessionError::InputUnknown`] or [`SessionError::InputRank`] for an input that cannot be
    ///   fed.
    /// - Returns [`SessionError::TensorTooLarge`] if inputs that no node reads have more than 2^22 elements in all.
    /// - Returns [`SessionError::TokensFixed`] if the model takes a fixed number of tokens other than 1.
    /// - Returns [`SessionError::SizesDiffer`] if inputs fix different batches.
    /// - Returns [`SessionError::RingMetadata`] or [`SessionError::RingTooSmall`] if the model declares sizes of rings
    ///   that cannot be right.
    pub fn new(model: &Model, decoder: &Decoder<'_>) -> Result<Self, SessionError> {
        let logits = decoder.logits.as_ref().ok_or(SessionError::NoLogits)?;
        let caches = cache_ports(decoder, &rings(model)?);
        let is_other = |input: &&Input<'_>| {
            !matches!(input.role, InputRole::Past(_) | InputRole::State(_) | InputRole::Encoder(_))
        };
        let others = decoder.inputs.iter().filter(is_other);
        let mut feeds = others.map(FeedPort::new).collect::<Result<Vec<_>, _>>()?;
        check_unread(&feeds)?;
        if caches.iter().any(CachePort::is_written_by_operator) {
            let masks = feeds.iter_mut().filter(|feed| feed.purpose == Purpose::Mask);
            masks.for_each(|mask| mask.purpose = Purpose::LengthMask);
        }
        let mut batch = None;
        let of_caches =
            caches.iter().map(|cache| (cache.past.as_str(), cache.dims.first().copied().flatten()));
        let of_feeds = decoder
            .inputs
            .iter()
            .filter(|input| {
                !matches!(
                    input.role,
                    InputRole::Past(_)
                        | InputRole::TotalSequenceLength
                        | InputRole::SharedPositions
                        | InputRole::Unread
                )
            })
            .map(|input| (input.value.name, known(&input.value, 0)));
        for (name, size) in of_caches.chain(of_feeds) {
            let Some(size) = size else { continue };
            if let Some(batch) = batch.filter(|batch| *batch != size) {
                return Err(SessionError::SizesDiffer {
                    size: ModelSize::Batch,
                    input: name.to_owned(),
                    got: size,
                    expected: batch,
                });
            }
            batch = Some(size);
        }
        let tokens = decoder.inputs.iter().find(|input| input.role.is_tokens());
        let is_decode_only = match tokens.and_then(|tokens| known(&tokens.value, 1)) {
            Some(1) => true,
            Some(size) => return Err(SessionError::TokensFixed { size }),
            None => false,
        };
        let last = logits.shape.as_ref().and_then(|shape| shape.last());
        Ok(Self {
            caches,
            states: decoder.states.iter().map(StatePort::new).collect(),
            encoder: decoder
                .from_encoder()
                .map(|(value, part)| EncoderPort::new(value, part, batch_of(decoder)))
                .collect::<Result<_, _>>()?,
            feeds,
            logits: logits.name.to_owned(),
            logits_element: logits.element,
            last_logits_only: logits
                .shape
                .as_ref()
                .and_then(|shape| shape.get(1))
                .is_some_and(|dim| dim.size() == Some(1)),
            vocabulary: last.and_then(|last| last.size()),
            batch,
            is_decode_only,
            refuses_padding: decoder.caches.iter().any(Cache::refuses_padding),
            most_tokens: model.metadata(MOST_TOKENS).and_then(|tokens| tokens.parse().ok()),
            exported: model.metadata(DECODER).map(str::to_owned),
            has_quantised_weights: model.has_quantised_weights(),
        })
    }

    /// Returns the operator that writes the caches, if they are written in place.
    pub fn writer(&self) -> CacheWriter {
        match self.caches.iter().any(CachePort::is_written_by_operator) {
            true => CacheWriter::GroupQueryAttention,
            false => CacheWriter::TensorScatter,
        }
    }

    /// Returns `true` if the model concatenates pasts and new rows, so that no cache can be written in place.
    pub fn is_copied(&self) -> bool {
        self.caches.iter().any(|cache| cache.growth == Some(Growth::Joined))
    }

    /// Returns how the caches grow if past and present are separate buffers, or `None` if all are static.
    pub fn growth(&self) -> Option<Growth> {
        self.caches.iter().find_map(|cache| cache.growth)
    }

    /// Returns `true` if an input has this purpose.
    pub fn takes(&self, purpose: Purpose) -> bool {
        self.feeds.iter().any(|feed| feed.purpose == purpose)
    }

    /// Returns the batch that the model fixes, or `asked` if the model does not fix it.
    ///
    /// # Errors
    /// Returns [`SessionError::SizeFixed`] if `asked` is not the batch that the model fixes.
    pub fn batch_or(&self, asked: Option<usize>) -> Result<Option<usize>, SessionError> {
        fixed(SessionSetting::Batch, self.batch, asked)
    }

    /// Returns the capacity that the model fixes, or `asked` if the model does not fix it.
    ///
    /// # Errors
    /// - Returns [`SessionError::SizeFixed`] if `asked` is not the capacity that the model fixes.
    /// - Returns the errors of [`capacity`](Self::capacity).
    pub fn capacity_or(&self, asked: Option<usize>) -> Result<Option<usize>, SessionError> {
        fixed(SessionSetting::Capacity, self.capacity()?, asked)
    }

    /// Returns the number of tokens of a sample for which the caches have room, or `None` if no cache declares it. It
    /// is the capacity of the linear caches. Without linear caches, it is [`most_tokens`](Self::most_tokens).
    ///
    /// # Errors
    /// Returns [`SessionError::SizesDiffer`] if caches declare different capacities.
    pub fn capacity(&self) -> Result<Option<usize>, SessionError> {
        if !self.has_linear() {
            return Ok(self.most_tokens);
        }
        let mut capacity = None;
        for cache in self.caches.iter().filter(|cache| cache.ring.is_none()) {
            let Some(got) = cache.dims.get(cache.axis).copied().flatten() else { continue };
            if let Some(expected) = capacity.filter(|capacity| *capacity != got) {
                return Err(SessionError::SizesDiffer {
                    size: ModelSize::Capacity,
                    input: cache.past.clone(),
                    got,
                    expected,
                });
            }
            capacity = Some(got);
        }
        Ok(capacity)
    }

    /// Returns `true` if the model has linear caches, or no cache.
    pub fn has_linear(&self) -> bool {
        self.caches.is_empty() || self.caches.iter().any(|cache| cache.ring.is_none())
    }

    /// Returns the largest number of rows that a step may write, which is the smallest chunk of a ring.
    pub fn most_rows(&self) -> usize {
        self.rings().map(|ring| ring.chunk).min().unwrap_or(usize::MAX)
    }

    /// Returns the size of each ring.
    pub fn rings(&self) -> impl Iterator<Item = RingSize> {
        self.caches.iter().filter_map(|cache| cache.ring)
    }

    /// Returns `true` if the model has no states, or returns them after each token of a run.
    #[must_use]
    pub fn returns_all_states(&self) -> bool {
        self.states.iter().all(|state| state.columns.is_some())
    }

    /// Fills in open sizes of a row from `other`. That decoder computes the same function and declares the
    /// sizes.
    ///
    /// # Errors
    /// Returns [`SessionError::SizeOpen`] for a size that stays open.
    pub fn settle(&mut self, other: Option<&Self>) -> Result<(), SessionError> {
        for (index, cache) in self.caches.iter_mut().enumerate() {
            let row = other.and_then(|other| other.caches.get(index)).and_then(CachePort::row);
            cache.settle(row)?;
        }
        for state in &self.states {
            if let Some(axis) = state.inner.iter().position(Option::is_none) {
                return Err(SessionError::SizeOpen { input: state.past.clone(), axis: axis + 1 });
            }
        }
        Ok(())
    }
}

impl CachePort {
    fn new(cache: &Cache<'_>, layer: usize, rings: &[RingSize]) -> Self {
        let dims: Vec<_> = cache.known_shape.iter().map(|dim| dim.size()).collect();
        let capacity = dims.get(cache.axis).copied().flatten();
        Self {
            past: cache.past.to_owned(),
            present: cache.present.to_owned(),
            element: cache.element,
            axis: cache.axis,
            layer,
            ring: rings.iter().copied().find(|ring| cache.is_ring() && Some(ring.capacity) == capacity),
            dims,
            growth: cache.growth(),
        }
    }

    /// Returns the number of slots of a cache for samples of this many tokens.
    #[must_use]
    pub fn slots(&self, capacity: usize) -> usize {
        self.ring.map_or(capacity, |ring| ring.capacity)
    }

    fn is_written_by_operator(&self) -> bool {
        self.growth == Some(Growth::ByOperator)
    }

    /// Returns the shape of a cache for this batch and samples of this many tokens. A ring has its own capacity. All
    /// other dimensions are known after [`Interface::settle`].
    pub fn shape(&self, batch: usize, capacity: usize) -> Vec<usize> {
        self.shape_of_slots(batch, self.slots(capacity))
    }

    /// Returns the shape of the rows of this many slots.
    pub(crate) fn shape_of_slots(&self, batch: usize, slots: usize) -> Vec<usize> {
        let dim = |(index, dim): (usize, &Option<usize>)| match index {
            0 => batch,
            index if index == self.axis => slots,
            _ => dim.unwrap_or_default(),
        };
        self.dims.iter().enumerate().map(dim).collect()
    }

    fn inner(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        self.dims.iter().copied().enumerate().filter(|(index, _)| *index != 0 && *index != self.axis)
    }

    /// Returns the number of elements that one token of one sample takes, or `None` if a dimension is open.
    fn row(&self) -> Option<usize> {
        self.inner().try_fold(1_usize, |row, (_, dim)| row.checked_mul(dim?))
    }

    fn settle(&mut self, row: Option<usize>) -> Result<(), SessionError> {
        let open: Vec<usize> =
            self.inner().filter(|(_, dim)| dim.is_none()).map(|(index, _)| index).collect();
        let known = self.inner().filter_map(|(_, dim)| dim).try_fold(1_usize, usize::checked_mul);
        match (open.as_slice(), row, known) {
            ([], ..) => Ok(()),
            ([index], Some(row), Some(known)) if known > 0 && row.is_multiple_of(known) => {
                if let Some(dim) = self.dims.get_mut(*index) {
                    *dim = Some(row / known);
                }
                Ok(())
            }
            ([axis, ..], ..) => Err(SessionError::SizeOpen { input: self.past.clone(), axis: *axis }),
        }
    }
}

impl StatePort {
    fn new(state: &State<'_>) -> Self {
        Self {
            past: state.past.to_owned(),
            present: state.present.to_owned(),
            element: state.element,
            inner: state.shape.iter().skip(1).map(|dim| dim.size()).collect(),
            columns: state.columns.map(str::to_owned),
        }
    }

    /// Returns the shape of the state for this batch. All other dimensions are known after [`Interface::settle`].
    #[must_use]
    pub fn shape(&self, batch: usize) -> Vec<usize> {
        let inner = self.inner.iter().map(|dim| dim.unwrap_or_default());
        std::iter::once(batch).chain(inner).collect()
    }
}

impl EncoderPort {
    /// Describes an input. `batch` is the dimension of the samples as the tokens declare it.
    fn new(value: &ValueInfo<'_>, part: EncoderPart, batch: Dimension<'_>) -> Result<Self, SessionError> {
        let name = || value.name.to_owned();
        let shape = value.shape.as_deref().unwrap_or_default();
        let dims: Vec<_> = shape.iter().map(|dim| dim.size()).collect();
        let stacked = shape.iter().position(|dim| *dim == batch).filter(|_| shape.first() != Some(&batch));
        if let Some(axis) = stacked.filter(|_| matches!(batch, Dimension::Symbolic(_))) {
            return Err(SessionError::EncoderStacked { input: name(), axis });
        }
        let usual = if dims.len() > 3 { dims.len() - 2 } else { 1 };
        let mut open = dims.iter().enumerate().skip(1).filter(|(_, dim)| dim.is_none()).map(|(axis, _)| axis);
        let axis = open.next().unwrap_or(usual);
        match open.next() {
            Some(axis) => Err(SessionError::SizeOpen { input: name(), axis }),
            None => Ok(Self { name: name(), element: value.element, part, axis, dims }),
        }
    }

    /// Returns `true` if the input marks the real positions of the encoder.
    #[must_use]
    pub fn is_mask(&self) -> bool {
        self.part == EncoderPart::Mask
    }

    /// Returns the number of positions of the encoder if the model fixes it.
    #[must_use]
    pub fn fixed_length(&self) -> Option<usize> {
        self.dims.get(self.axis).copied().flatten()
    }

    /// Returns the shape for this batch and this number of positions of the encoder.
    #[must_use]
    pub fn shape(&self, batch: usize, length: usize) -> Vec<usize> {
        let dim = |(index, dim): (usize, &Option<usize>)| match index {
            0 => batch,
            index if index == self.axis => length,
            _ => dim.unwrap_or_default(),
        };
        self.dims.iter().enumerate().map(dim).collect()
    }

    /// Returns the number of positions in a tensor of one sample, or `None` if the tensor has another shape.
    pub(crate) fn length_of(&self, shape: &[usize]) -> Option<usize> {
        let length = *shape.get(self.axis)?;
        let fits = shape == self.shape(1, length);
        let fixed = self.fixed_length();
        (fits && fixed.is_none_or(|fixed| fixed == length)).then_some(length)
    }

    /// Returns the type and the shape of a tensor of one sample in words, with the number of positions if it is known.
    pub(crate) fn described(&self, length: Option<usize>) -> String {
        let fixed = self.fixed_length().or(length);
        let dim = |(index, dim): (usize, &Option<usize>)| match (index, dim) {
            (0, _) => "1".to_owned(),
            (index, _) if index == self.axis => fixed.map_or("length".to_owned(), |size| size.to_string()),
            (_, dim) => dim.unwrap_or_default().to_string(),
        };
        let dims: Vec<_> = self.dims.iter().enumerate().map(dim).collect();
        format!("{} [{}]", self.element, dims.join(", "))
    }
}

/// Returns the dimension of the samples as the tokens declare it.
fn batch_of<'m>(decoder: &Decoder<'m>) -> Dimension<'m> {
    let tokens = decoder.inputs.iter().find(|input| input.role.is_tokens());
    tokens.and_then(|tokens| tokens.value.shape.as_ref()?.first().copied()).unwrap_or(Dimension::Unknown)
}

impl FeedPort {
    fn new(input: &Input<'_>) -> Result<Self, SessionError> {
        let value = &input.value;
        let purpose = match input.role {
            InputRole::TokenIds => Purpose::Tokens,
            InputRole::Embeddings => Purpose::Embeddings {
                size: known(value, 2)
                    .ok_or_else(|| SessionError::SizeOpen { input: value.name.to_owned(), axis: 2 })?,
            },
            InputRole::PositionIds => Purpose::Positions,
            InputRole::SharedPositions => Purpose::SharedPositions,
            InputRole::AttentionMask => Purpose::Mask,
            InputRole::BlockIds => Purpose::BlockIds,
            InputRole::WriteIndices => Purpose::WriteIndices,
            InputRole::NonpadKvSeqlen => Purpose::NonpadKvSeqlen,
            InputRole::SeqlensK => Purpose::SeqlensK,
            InputRole::TotalSequenceLength => Purpose::TotalLength,
            InputRole::Unread => Purpose::Unread,
            InputRole::Past(_) | InputRole::State(_) | InputRole::Encoder(_) | InputRole::Other => {
                return Err(SessionError::InputUnknown { input: value.name.to_owned() });
            }
        };
        Self::with(value, purpose)
    }

    /// Describes an input with a purpose.
    pub(crate) fn with(value: &ValueInfo<'_>, purpose: Purpose) -> Result<Self, SessionError> {
        let ranks: &[usize] = match purpose {
            Purpose::Tokens
            | Purpose::Positions
            | Purpose::Mask
            | Purpose::LengthMask
            | Purpose::BlockIds => &[2],
            Purpose::Embeddings { .. } => &[3],
            Purpose::WriteIndices | Purpose::NonpadKvSeqlen => &[1],
            Purpose::SeqlensK => &[1, 2],
            Purpose::TotalLength | Purpose::SharedPositions => &[0, 1],
            Purpose::Unread | Purpose::Condition(_) => &[],
        };
        let usual = || vec![None; ranks.first().copied().unwrap_or_default()];
        let dims =
            value.shape.as_ref().map_or_else(usual, |shape| shape.iter().map(|dim| dim.size()).collect());
        if !ranks.is_empty() && !ranks.contains(&dims.len()) {
            let (input, rank, expected) = (value.name.to_owned(), dims.len(), ranks.to_vec());
            return Err(SessionError::InputRank { input, rank, expected });
        }
        Ok(Self { name: value.name.to_owned(), element: value.element, dims, purpose })
    }
}

/// Checks that the inputs that no node reads have few elements in all, because the file may claim any size.
fn check_unread(feeds: &[FeedPort]) -> Result<(), SessionError> {
    const MOST: usize = 1 << 22;
    let mut sum = 0_usize;
    for port in feeds.iter().filter(|port| port.purpose == Purpose::Unread) {
        let shape: Vec<_> = port.dims.iter().map(|dim| dim.unwrap_or(1)).collect();
        sum = sum.saturating_add(shape.iter().copied().fold(1, usize::saturating_mul));
        if sum > MOST {
            return Err(SessionError::TensorTooLarge { element: port.element, shape });
        }
    }
    Ok(())
}

/// Returns the size that the model fixes, or the requested size if the model does not fix it.
fn fixed(
    setting: SessionSetting,
    fixed: Option<usize>,
    asked: Option<usize>,
) -> Result<Option<usize>, SessionError> {
    match (fixed, asked) {
        (Some(fixed), Some(got)) if got != fixed => Err(SessionError::SizeFixed { setting, fixed, got }),
        (fixed, asked) => Ok(fixed.or(asked)),
    }
}

/// Returns the sizes of rings that a model declares.
fn rings(model: &Model) -> Result<Vec<RingSize>, SessionError> {
    let rings = RingSize::of_model(model)?;
    let is_wrong = |ring: &&RingSize| {
        let same = rings.iter().filter(|other| other.capacity == ring.capacity).count();
        !ring.is_sound() || same > 1
    };
    match rings.iter().find(is_wrong) {
        Some(&ring) => Err(SessionError::RingTooSmall { ring }),
        None => Ok(rings),
    }
}

fn cache_ports(decoder: &Decoder<'_>, rings: &[RingSize]) -> Vec<CachePort> {
    let mut layers: BTreeMap<_, usize> = BTreeMap::new();
    let port = |cache: &Cache<'_>| {
        let layer = layers.entry((cache.part, cache.is_scales())).or_default();
        let port = CachePort::new(cache, *layer, rings);
        *layer += 1;
        port
    };
    decoder.caches.iter().map(port).collect()
}

fn known(value: &ValueInfo<'_>, axis: usize) -> Option<usize> {
    value.shape.as_ref().and_then(|shape| shape.get(axis)).and_then(|dim| dim.size())
}

#[cfg(test)]
pub(crate) mod tests {
    use kvscatter::ElementType;

    use super::CachePort;
    use crate::error::SessionError;

    /// Returns a cache whose slots are dimension 2.
    pub(crate) fn port(element: ElementType, dims: &[Option<usize>]) -> CachePort {
        let (past, present) = ("past".to_owned(), "present".to_owned());
        CachePort { past, present, element, axis: 2, layer: 0, dims: dims.to_vec(), growth: None, ring: None }
    }

    /// Another decoder declares that a row has so many elements.
    fn settled(dims: &[Option<usize>], row: Option<usize>) -> Result<Vec<usize>, usize> {
        let mut port = port(ElementType::Float32, dims);
        match port.settle(row) {
            Ok(()) => Ok(port.shape(9, 7)),
            Err(SessionError::SizeOpen { axis, .. }) => Err(axis),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn one_open_size_follows_from_the_elements_of_a_row() {
        let row = |dims| port(ElementType::Float32, dims).row();
        assert_eq!(row(&[None, Some(3), None, Some(4)]), Some(12));
        assert_eq!(row(&[None, None, None, Some(4)]), None);
        assert_eq!(settled(&[None, Some(3), None, Some(4)], None), Ok(vec![9, 3, 7, 4]));
        assert_eq!(settled(&[None, None, None, Some(4)], Some(12)), Ok(vec![9, 3, 7, 4]));
        assert_eq!(settled(&[None, Some(3), None, None], Some(12)), Ok(vec![9, 3, 7, 4]));
        // A row of 13 elements has no heads of 4, and heads of 0 elements cannot be counted.
        assert_eq!(settled(&[None, None, None, Some(4)], Some(13)), Err(1));
        assert_eq!(settled(&[None, Some(3), None, None], None), Err(3));
        assert_eq!(settled(&[None, None, None, Some(0)], Some(0)), Err(1));
        assert_eq!(settled(&[None, None, None, None], Some(12)), Err(1));
    }
}
