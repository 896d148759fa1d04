//! Errors of loading and running decoders.

use std::fmt;
use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::Fingerprint;
use kvscatter_onnx::convert::RingSize;
use kvscatter_onnx::decoder::Growth;

use crate::{Sample, SavedError};

/// An error of loading or running a decoder.
///
/// After every error, each sample has the tokens, rows and states that it had before the call. After
/// [`CacheLost`](Self::CacheLost) the session must be opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The model's file or graph has an error.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::OnnxError),
    /// The file of a saved sample cannot be written, or has an error.
    #[error(transparent)]
    Saved(#[from] SavedError),

    // Memory.
    /// The tensor is larger than any buffer, or the system has no memory for it.
    #[error("no memory for a tensor of {element} of shape {shape:?}")]
    TensorTooLarge {
        /// The element type of the tensor.
        element: ElementType,
        /// The requested shape.
        shape: Vec<usize>,
    },
    /// The number of values differs from the number of elements of the shape.
    #[error("shape {shape:?} takes {expected} values, got {got}")]
    ValueCount {
        /// The requested shape.
        shape: Vec<usize>,
        /// The number of elements of the shape.
        expected: usize,
        /// The number of values that were given.
        got: usize,
    },
    /// The size of an engine's memory differs from the size of its tensor.
    #[error("a tensor of {element} of shape {shape:?} takes {expected} bytes, got {got}")]
    ByteCount {
        /// The element type of the tensor.
        element: ElementType,
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// The number of bytes that the tensor takes.
        expected: usize,
        /// The number of bytes of the engine's memory.
        got: usize,
    },
    /// The type of an input cannot represent an integer that the input needs.
    #[error("{value} does not fit an input of {element}")]
    InputType {
        /// The element type of the input.
        element: ElementType,
        /// The integer that does not fit.
        value: i64,
    },
    /// The caches take more memory than the limit.
    #[error("{} bytes of memory are needed, the limit is {limit} bytes", counted(*needed))]
    MemoryLimit {
        /// The number of bytes that are needed, or `None` if it does not fit into 64 bits.
        needed: Option<u64>,
        /// The limit in bytes.
        limit: u64,
    },

    // The model.
    /// A cache grows, so its present is longer than its past.
    #[error("cache {input:?} grows with every step, and only static caches are run in place: {growth}")]
    NotStatic {
        /// The name of the cache's past input.
        input: String,
        /// How the cache grows. The message ends with the advice for this kind of growth.
        growth: Growth,
    },
    /// `GroupQueryAttention` writes some caches, and `TensorScatter` writes others.
    #[error("GroupQueryAttention writes some caches, but not {input:?}: one operator must write all caches")]
    MixedWriters {
        /// The name of the past input of the first cache that `GroupQueryAttention` does not write.
        input: String,
    },
    /// No node writes the cache in a way that works in place.
    #[error("cache {input:?} is not written in a way that can be run: {why}")]
    NotScattered {
        /// The name of the cache's past input.
        input: String,
        /// The reason, as text for the message.
        why: String,
    },
    /// The decoder belongs to an encoder-decoder.
    #[error(
        "the model belongs to an encoder-decoder, since input {input:?} comes from an encoder: only decoders without an \
         encoder are run"
    )]
    EncoderDecoder {
        /// The name of the input.
        input: String,
    },
    /// A node other than the writer reads the past. It may read old or new rows, because past and present are
    /// one buffer.
    #[error(
        "cache {input:?} is also read by {reader}, which may read old or new rows if the cache is written in place"
    )]
    PastRead {
        /// The name of the cache's past input.
        input: String,
        /// The label of the other node.
        reader: String,
    },
    /// The elements of a cache are narrower than a byte, so two rows may share a byte.
    #[error("cache {input:?} is of {element}, whose rows may not be whole bytes: this is not supported")]
    CacheElement {
        /// The name of the cache's past input.
        input: String,
        /// The element type of the cache.
        element: ElementType,
    },
    /// The model does not have an input that determines the slots that a step writes.
    #[error("the model has no input write_indices, so the slots of a step cannot be set")]
    NoWriteIndices,
    /// The model does not have an input that determines the lengths for `GroupQueryAttention`.
    #[error("the model has no input attention_mask or seqlens_k, so the length of a sample cannot be set")]
    NoLengths,
    /// The metadata of the model describes its rings in another form.
    #[error("the metadata entry kvscatter.rings is wrong: {0}")]
    RingMetadata(#[from] kvscatter_onnx::convert::RingSizeError),
    /// The metadata of the model describes a ring that cannot serve what it declares.
    #[error("the metadata entry kvscatter.rings describes a ring that is too small: {ring}")]
    RingTooSmall {
        /// The ring that the metadata describes.
        ring: RingSize,
    },
    /// None of the outputs looks like logits of the next token.
    #[error(
        "the model has no output of logits, which has rank 3 and a floating-point type and is not a cache"
    )]
    NoLogits,
    /// The graph does not show which values an input needs.
    #[error(
        "input {input:?} cannot be fed: the graph does not show whether it is tokens, positions, a mask or lengths"
    )]
    InputUnknown {
        /// The name of the input.
        input: String,
    },
    /// The model takes embeddings in place of token ids.
    #[error("input {input:?} takes embeddings: sessions feed token ids, and have no embedding table")]
    Embeddings {
        /// The name of the input.
        input: String,
    },
    /// The model has a recurrent or convolution state beside its caches.
    #[error(
        "input {input:?} is a recurrent or convolution state, which only sessions with static caches run"
    )]
    State {
        /// The name of the input.
        input: String,
    },
    /// The rank of an input differs from the rank of the values that it is fed.
    #[error("input {input:?} has rank {rank}, must have rank {}", ranks(expected))]
    InputRank {
        /// The name of the input.
        input: String,
        /// The rank that the model declares.
        rank: usize,
        /// The ranks that are supported.
        expected: Vec<usize>,
    },
    /// The model takes a fixed number of tokens other than 1.
    #[error("the model takes exactly {size} tokens in a step, must take 1 or an open number")]
    TokensFixed {
        /// The number of tokens of each sample that the model takes in a step.
        size: usize,
    },
    /// A dimension of a cache or state other than batch and sequence is open.
    #[error("dimension {axis} of {input:?} is open: only batch and sequence may be open")]
    SizeOpen {
        /// The name of the input.
        input: String,
        /// The index of the dimension, counted from 0.
        axis: usize,
    },
    /// Two tensors declare different values for one size.
    #[error("{size} is {expected}, but {input:?} has {got}")]
    SizesDiffer {
        /// The size that is declared twice.
        size: ModelSize,
        /// The name of the tensor whose value differs from the earlier one.
        input: String,
        /// The value that this tensor declares.
        got: usize,
        /// The value that the earlier tensor declares.
        expected: usize,
    },
    /// Neither the model nor the caller gives the capacity.
    #[error("the caches have an open capacity: one must be given")]
    CapacityOpen,
    /// The caller gives another size than the one that the model fixes.
    #[error("the model's {} is fixed to {fixed}, got {got}", setting.name())]
    SizeFixed {
        /// The setting that contains the size.
        setting: SessionSetting,
        /// The size that the model fixes.
        fixed: usize,
        /// The size that the caller gives.
        got: usize,
    },
    /// The batch or the capacity is 0.
    #[error("a batch of {batch} and a capacity of {capacity}: both must be at least 1")]
    Empty {
        /// The number of samples of the batch.
        batch: usize,
        /// The number of slots of each cache.
        capacity: usize,
    },
    /// The shape of the logits is not that of a decoder's logits.
    #[error(
        "output {output:?} is of shape {shape:?}, for {batch} samples of {width} tokens it must be [{batch}, {width} or 1, vocabulary]"
    )]
    LogitsShape {
        /// The name of the output.
        output: String,
        /// The shape that the engine returned.
        shape: Vec<usize>,
        /// The number of samples of the run.
        batch: usize,
        /// The number of tokens of each sample in the run, padding included.
        width: usize,
    },
    /// The logits are of a type that cannot be converted to float32.
    #[error("output {output:?} is of {element}, which cannot be converted to float32")]
    LogitsElement {
        /// The name of the output.
        output: String,
        /// The element type of the output.
        element: ElementType,
    },

    // The calls of a running batch.
    /// The batch has no free index.
    #[error("the batch of {batch} is full")]
    BatchFull {
        /// The number of samples that fit in the batch.
        batch: usize,
    },
    /// The sample has been removed, or it belongs to another session.
    #[error("{sample} is not in this batch: it was removed, or never added here")]
    NoSuchSample {
        /// The sample that was given.
        sample: Sample,
    },
    /// A call lists a sample more than once.
    #[error("{sample} is listed twice")]
    SampleTwice {
        /// The sample that is listed twice.
        sample: Sample,
    },
    /// A step lists a sample with an empty list of tokens.
    #[error("{sample} has no tokens: at least 1 is needed")]
    NoTokens {
        /// The sample without tokens.
        sample: Sample,
    },
    /// A step lists no samples.
    #[error("no sample is given tokens")]
    NoSamples,
    /// A chunk of a prefill has 0 tokens.
    #[error("a chunk of 0 tokens: at least 1 is needed")]
    NoChunk,
    /// The cache has no room for the new tokens of a sample.
    #[error("{sample}: {cached} + {tokens} tokens exceed the capacity of {capacity} tokens")]
    CapacityExceeded {
        /// The sample that is too long.
        sample: Sample,
        /// The number of tokens of the sample that are cached.
        cached: usize,
        /// The number of new tokens of the sample.
        tokens: usize,
        /// The number of slots of each cache.
        capacity: usize,
    },
    /// The vocabulary does not contain a token.
    #[error("{sample}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    TokenUnknown {
        /// The sample that the token was given to.
        sample: Sample,
        /// The index of the token among the new tokens of the sample, counted from 0.
        index: usize,
        /// The id of the token.
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// A sample is to be truncated to more tokens than are cached.
    #[error("{sample} cannot be truncated to {to}: {cached} tokens are cached")]
    TruncateBeyond {
        /// The sample that was given.
        sample: Sample,
        /// The number of tokens to keep.
        to: usize,
        /// The number of tokens of the sample that are cached.
        cached: usize,
    },
    /// A sample cannot be truncated that far, because a ring no longer has the rows that its next tokens would see.
    #[error(
        "{sample} cannot be truncated to {to} of {cached} tokens: a ring of {} slots for a window of {} allows {least} or \
         more, or 0", ring.capacity, ring.window
    )]
    TruncateRing {
        /// The sample.
        sample: Sample,
        /// The number of tokens to keep.
        to: usize,
        /// The number of cached tokens.
        cached: usize,
        /// The least number of tokens above 0 that can be kept.
        least: usize,
        /// The ring.
        ring: RingSize,
    },
    /// A sample cannot be truncated below the point that [`begin`](crate::KvSession::begin) set.
    #[error(
        "{sample} cannot be truncated to {to}: it had {begun} tokens at begin, so commit it or roll it back first"
    )]
    TruncateBegun {
        /// The sample.
        sample: Sample,
        /// The number of tokens to keep.
        to: usize,
        /// The number of cached tokens when the point was set.
        begun: usize,
    },
    /// A sample of a model with states cannot go back to this number of tokens.
    #[error(
        "{sample} cannot be truncated to {to} of {cached} tokens: input {input:?} is a state, which has no rows to drop; \
         0 and the tokens at begin are possible"
    )]
    TruncateState {
        /// The sample.
        sample: Sample,
        /// The number of tokens to keep.
        to: usize,
        /// The number of cached tokens.
        cached: usize,
        /// The name of the state's input.
        input: String,
    },
    /// A point is set for a sample that has one.
    #[error("{sample} has begun already: commit it or roll it back first")]
    Begun {
        /// The sample.
        sample: Sample,
    },
    /// A sample has no point to go back to.
    #[error("{sample} has not begun, so there is nothing to commit, accept or roll back")]
    NotBegun {
        /// The sample.
        sample: Sample,
    },
    /// More tokens are accepted than were fed.
    #[error("{sample} cannot accept {accepted} tokens: {fed} were fed since begin")]
    AcceptBeyond {
        /// The sample.
        sample: Sample,
        /// The number of tokens to keep.
        accepted: usize,
        /// The number of tokens that were fed since the point was set.
        fed: usize,
    },
    /// The batch has fewer free indices than copies are needed.
    #[error("{needed} copies do not fit: {free} of the {batch} batch indices are free")]
    NoRoom {
        /// The number of copies.
        needed: usize,
        /// The number of batch indices that are free or become free.
        free: usize,
        /// The number of samples that fit in the batch.
        batch: usize,
    },
    /// A parent is not an index of the list of samples.
    #[error("parents[{index}] = {parent}: must be below {samples}, the number of samples")]
    NoSuchParent {
        /// The index in the list of parents, counted from 0.
        index: usize,
        /// The parent.
        parent: usize,
        /// The number of samples that are given.
        samples: usize,
    },
    /// There is no memory for the rows with which a sample could go back.
    #[error("cannot allocate {needed} bytes to copy rows that a step overwrites")]
    UndoMemory {
        /// The number of bytes.
        needed: u64,
    },
    /// The logits after a token contain NaN, and the session refuses that. It is the first such token of the run. A
    /// later token may have caused it, because attention may multiply hidden rows by zero.
    #[error("{sample}: the logits after new token {index} contain NaN")]
    NanLogits {
        /// The sample.
        sample: Sample,
        /// The index of the token among the new tokens of the sample, counted from 0.
        index: usize,
    },
    /// The function of [`interrupt_when`](crate::KvSession::interrupt_when) has ended a step.
    #[error("the step was interrupted")]
    Interrupted,
    /// The sample of a file was saved with another model.
    #[error("{}: the sample was saved with model {saved}, and this model is {model}", path.display())]
    SavedModel {
        /// The path of the file.
        path: PathBuf,
        /// The fingerprint of the model that the sample was saved with.
        saved: Fingerprint,
        /// The fingerprint of the session's model.
        model: Fingerprint,
    },
    /// The file has another number of caches and states than the model.
    #[error("{}: the file has {got} caches and states, and the model has {expected}", path.display())]
    SavedTensors {
        /// The path of the file.
        path: PathBuf,
        /// The number of caches and states in the file.
        got: usize,
        /// The number of caches and states of the model.
        expected: usize,
    },
    /// A cache or state has another layout in the file than in the session.
    #[error(
        "{}: {name:?} is {}, and must be {expected}",
        path.display(),
        saved.as_deref().unwrap_or("not in the file")
    )]
    SavedLayout {
        /// The path of the file.
        path: PathBuf,
        /// The name of the input.
        name: String,
        /// The layout in the file, or `None` if the file does not contain this input.
        saved: Option<String>,
        /// The layout in the session, with as many rows as the file has tokens.
        expected: String,
    },
    /// The sample of a file has more tokens than fit.
    #[error("{}: the sample has {tokens} tokens, and the capacity is {capacity} tokens", path.display())]
    SavedTooLong {
        /// The path of the file.
        path: PathBuf,
        /// The number of tokens of the sample.
        tokens: usize,
        /// The maximum number of tokens of a sample in this session.
        capacity: usize,
    },
    /// The vocabulary does not contain a token of the file.
    #[error("{}: token {index} is {token}, which the model does not have{}", path.display(), known(*vocabulary))]
    SavedToken {
        /// The path of the file.
        path: PathBuf,
        /// The index of the token, counted from 0.
        index: usize,
        /// The id of the token.
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// The file has fewer rows of a ring than the next token sees.
    #[error("{}: {name:?} has {rows} rows, and the next token sees {needed}", path.display())]
    SavedRows {
        /// The path of the file.
        path: PathBuf,
        /// The name of the cache's past input.
        name: String,
        /// The number of rows.
        rows: usize,
        /// The number of rows that the next token sees.
        needed: usize,
    },
    /// The prompts have different lengths, but growing caches need the same length for all samples.
    #[error("prompts of {first} and {other} tokens: a cache that grows takes one length; {growth}")]
    Ragged {
        /// The number of tokens of the first prompt.
        first: usize,
        /// The number of tokens of the first prompt whose length is different.
        other: usize,
        /// How the caches grow. The message ends with the advice for this kind of growth.
        growth: Growth,
    },
    /// A prompt has no tokens.
    #[error("prompt {prompt} is empty: at least one token is needed")]
    PromptEmpty {
        /// The index of the prompt, counted from 0.
        prompt: usize,
    },
    /// The list of prompts is empty.
    #[error("no prompt is given")]
    NoPrompts,
    /// The logits after a prompt are missing, or each of them is NaN or -inf, so no token can be chosen.
    #[error("prompt {prompt}: the logits after its last token are missing, NaN or -inf")]
    NotANumber {
        /// The index of the prompt, counted from 0.
        prompt: usize,
    },
    /// The vocabulary does not contain a token of a prompt.
    #[error("prompt {prompt}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    PromptTokenUnknown {
        /// The index of the prompt, counted from 0.
        prompt: usize,
        /// The index of the token in the prompt, counted from 0.
        index: usize,
        /// The id of the token.
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// The vocabulary does not contain a token that ends a sample.
    #[error("eos[{index}] is {token}, which the model does not have{}", known(*vocabulary))]
    EosUnknown {
        /// The index of the token in the list, counted from 0.
        index: usize,
        /// The id of the token.
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// A prompt, or a prompt and the tokens to be generated after it, exceed the capacity.
    #[error("prompt {prompt}: {}", excess(*tokens, *generated, *capacity))]
    PromptTooLong {
        /// The index of the prompt, counted from 0.
        prompt: usize,
        /// The number of tokens of the prompt.
        tokens: usize,
        /// The number of tokens to be generated, which is at least 1. The last one takes no slot.
        generated: usize,
        /// The number of slots of each cache.
        capacity: usize,
    },
    /// An option of generation is outside its range.
    #[error("{setting} is {value}, must be {}", setting.range())]
    OptionRange {
        /// The option.
        setting: GenerateSetting,
        /// The value that was given.
        value: f32,
    },
    /// The caller gives a capacity, but the caches grow.
    #[error("the caches grow with every step, so no capacity can be given")]
    CapacityUseless,

    /// A prompt is to be saved or loaded, but the caches grow.
    #[error("the caches grow with every step, so no prompt can be saved or loaded")]
    SavedUseless,
    /// Several prompts are to be saved to one file.
    #[error("{prompts} prompts cannot be saved: a file has one prompt")]
    SavePrompts {
        /// The number of prompts.
        prompts: usize,
    },

    // The engine.
    /// The engine cannot load the model.
    #[error("{}: {engine} cannot load the model: {message}", path.display())]
    Load {
        /// The path of the model's file.
        path: PathBuf,
        /// The name and version of the engine.
        engine: String,
        /// The message of the engine.
        message: String,
    },
    /// The engine cannot run a step of the model.
    #[error("{engine} cannot run the model: {message}")]
    Run {
        /// The name and version of the engine.
        engine: String,
        /// The message of the engine.
        message: String,
    },
    /// The engine lost a cache in a run that failed.
    #[error("the engine lost cache {cache:?} in a run that failed: the session must be opened again")]
    CacheLost {
        /// The name of the cache's past input.
        cache: String,
    },
}

/// A size that several tensors of a model declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSize {
    /// The number of samples.
    Batch,
    /// The number of slots of each cache.
    Capacity,
    /// The number of tokens in the vocabulary, the last dimension of the logits.
    Vocabulary,
}

impl fmt::Display for ModelSize {
    /// Writes `batch`, `capacity` or `vocabulary`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batch => "batch",
            Self::Capacity => "capacity",
            Self::Vocabulary => "vocabulary",
        })
    }
}

/// A setting of a session. Each interface to sessions has its name for the setting, such as an option or a
/// keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionSetting {
    /// The number of samples.
    Batch,
    /// The number of slots of each cache.
    Capacity,
    /// The maximum number of bytes of the caches.
    Memory,
}

impl SessionSetting {
    /// Returns `batch`, `capacity` or `memory`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Capacity => "capacity",
            Self::Memory => "memory",
        }
    }
}

/// An option of generation that has a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GenerateSetting {
    /// [`Sampling::temperature`](crate::Sampling::temperature).
    Temperature,
    /// [`Sampling::top_p`](crate::Sampling::top_p).
    TopP,
    /// [`Sampling::min_p`](crate::Sampling::min_p).
    MinP,
    /// [`GenerateOptions::repetition_penalty`](crate::GenerateOptions::repetition_penalty).
    RepetitionPenalty,
}

impl GenerateSetting {
    /// Returns the name of the field.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
        }
    }

    /// Returns the values that the option may have, such as `above 0 and at most 1`.
    #[must_use]
    pub fn range(self) -> &'static str {
        match self {
            Self::Temperature | Self::RepetitionPenalty => "finite and above 0",
            Self::TopP => "above 0 and at most 1",
            Self::MinP => "from 0 to 1",
        }
    }
}

impl fmt::Display for GenerateSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl SessionError {
    /// Returns the stable name of the error, such as `capacity_exceeded`. An error about the model's file or
    /// graph has the name of [`OnnxError::kind`](kvscatter_onnx::OnnxError::kind), and an error about a saved sample
    /// that of [`SavedError::kind`].
    ///
    /// The name does not change between versions, even if the variant gets a new name.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Onnx(error) => error.kind(),
            Self::Saved(error) => error.kind(),
            Self::TensorTooLarge { .. } => "tensor_too_large",
            Self::ValueCount { .. } => "value_count",
            Self::ByteCount { .. } => "byte_count",
            Self::InputType { .. } => "input_type",
            Self::MemoryLimit { .. } => "memory_limit",
            Self::NotStatic { .. } => "not_static",
            Self::MixedWriters { .. } => "mixed_writers",
            Self::NotScattered { .. } => "not_scattered",
            Self::EncoderDecoder { .. } => "encoder_decoder",
            Self::PastRead { .. } => "past_read",
            Self::CacheElement { .. } => "cache_element",
            Self::NoWriteIndices => "no_write_indices",
            Self::NoLengths => "no_lengths",
            Self::RingMetadata(_) => "ring_metadata",
            Self::RingTooSmall { .. } => "ring_too_small",
            Self::NoLogits => "no_logits",
            Self::InputUnknown { .. } => "input_unknown",
            Self::Embeddings { .. } => "embeddings",
            Self::State { .. } => "state",
            Self::InputRank { .. } => "input_rank",
            Self::TokensFixed { .. } => "tokens_fixed",
            Self::SizeOpen { .. } => "size_open",
            Self::SizesDiffer { .. } => "sizes_differ",
            Self::CapacityOpen => "capacity_open",
            Self::SizeFixed { .. } => "size_fixed",
            Self::Empty { .. } => "empty",
            Self::LogitsShape { .. } => "logits_shape",
            Self::LogitsElement { .. } => "logits_element",
            Self::BatchFull { .. } => "batch_full",
            Self::NoSuchSample { .. } => "no_such_sample",
            Self::SampleTwice { .. } => "sample_twice",
            Self::NoTokens { .. } => "no_tokens",
            Self::NoSamples => "no_samples",
            Self::NoChunk => "no_chunk",
            Self::CapacityExceeded { .. } => "capacity_exceeded",
            Self::TokenUnknown { .. } => "token_unknown",
            Self::TruncateBeyond { .. } => "truncate_beyond",
            Self::TruncateRing { .. } => "truncate_ring",
            Self::TruncateBegun { .. } => "truncate_begun",
            Self::TruncateState { .. } => "truncate_state",
            Self::Begun { .. } => "begun",
            Self::NotBegun { .. } => "not_begun",
            Self::AcceptBeyond { .. } => "accept_beyond",
            Self::NoRoom { .. } => "no_room",
            Self::NoSuchParent { .. } => "no_such_parent",
            Self::UndoMemory { .. } => "undo_memory",
            Self::NanLogits { .. } => "nan_logits",
            Self::Interrupted => "interrupted",
            Self::SavedModel { .. } => "saved_model",
            Self::SavedTensors { .. } => "saved_tensors",
            Self::SavedLayout { .. } => "saved_layout",
            Self::SavedTooLong { .. } => "saved_too_long",
            Self::SavedToken { .. } => "saved_token",
            Self::SavedRows { .. } => "saved_rows_missing",
            Self::Ragged { .. } => "ragged",
            Self::PromptEmpty { .. } => "prompt_empty",
            Self::NoPrompts => "no_prompts",
            Self::NotANumber { .. } => "not_a_number",
            Self::PromptTokenUnknown { .. } => "prompt_token_unknown",
            Self::EosUnknown { .. } => "eos_unknown",
            Self::PromptTooLong { .. } => "prompt_too_long",
            Self::OptionRange { .. } => "option_range",
            Self::CapacityUseless => "capacity_useless",
            Self::SavedUseless => "saved_useless",
            Self::SavePrompts { .. } => "save_prompts",
            Self::Load { .. } => "load",
            Self::Run { .. } => "run",
            Self::CacheLost { .. } => "cache_lost",
        }
    }

    /// Returns the setting that a caller can change to avoid the error, if there is one.
    #[must_use]
    pub fn about(&self) -> Option<SessionSetting> {
        match self {
            Self::MemoryLimit { .. } => Some(SessionSetting::Memory),
            Self::CapacityOpen | Self::CapacityUseless => Some(SessionSetting::Capacity),
            Self::SizeFixed { setting, .. } => Some(*setting),
            _ => None,
        }
    }
}

/// Formats a number of bytes. Returns words for `None`, a number that does not fit into 64 bits.
fn counted(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "uncountably many".to_owned(), |bytes| bytes.to_string())
}

/// Formats the number of tokens that exceed a capacity, and how many fit.
fn excess(tokens: usize, generated: usize, capacity: usize) -> String {
    match capacity.checked_sub(tokens) {
        None => format!("{tokens} tokens exceed the capacity of {capacity} tokens"),
        Some(free) => format!(
            "{tokens} tokens and {generated} to be generated exceed the capacity of {capacity} tokens; {} can be generated",
            free.saturating_add(1)
        ),
    }
}

/// Formats ranks, such as `1 or 2`.
fn ranks(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

/// Formats the range of tokens, such as `: it has 0 to 255`. Returns an empty text if the size of the
/// vocabulary is unknown.
fn known(vocabulary: Option<usize>) -> String {
    vocabulary
        .map_or_else(String::new, |vocabulary| format!(": it has 0 to {}", vocabulary.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::{
        Fingerprint, GenerateSetting, Growth, ModelSize, PathBuf, RingSize, Sample, SavedError, SessionError,
        SessionSetting,
    };

    #[test]
    fn memory_is_counted_in_bytes_or_in_words() {
        let message = |needed| SessionError::MemoryLimit { needed, limit: 7 }.to_string();
        assert_eq!(message(Some(8)), "8 bytes of memory are needed, the limit is 7 bytes");
        assert_eq!(message(None), "uncountably many bytes of memory are needed, the limit is 7 bytes");
    }

    #[test]
    fn an_error_names_the_setting_that_avoids_it() {
        let about = [
            (SessionError::MemoryLimit { needed: None, limit: 1 }, Some(SessionSetting::Memory)),
            (SessionError::CapacityOpen, Some(SessionSetting::Capacity)),
            (SessionError::CapacityUseless, Some(SessionSetting::Capacity)),
            (
                SessionError::SizeFixed { setting: SessionSetting::Batch, fixed: 1, got: 2 },
                Some(SessionSetting::Batch),
            ),
            (SessionError::NoSamples, None),
        ];
        for (error, setting) in about {
            assert_eq!(error.about(), setting, "{error}");
        }
    }

    #[test]
    fn names_are_stable() {
        let (sample, element) = (Sample { batch_index: 0, serial: 0 }, kvscatter::ElementType::Float32);
        let name = || "x".to_owned();
        let ring = "capacity=1 window=1 chunk=1 rewind=0".parse().unwrap();
        let print = Fingerprint::from_bits(1);
        let named = [
            (SessionError::Onnx(kvscatter_onnx::OnnxError::GraphMissing), "graph_missing"),
            (SessionError::Saved(SavedError::NotSaved), "saved_not_saved"),
            (SessionError::TensorTooLarge { element, shape: vec![] }, "tensor_too_large"),
            (SessionError::ValueCount { shape: vec![], expected: 1, got: 1 }, "value_count"),
            (SessionError::ByteCount { element, shape: vec![], expected: 1, got: 1 }, "byte_count"),
            (SessionError::InputType { element, value: 1 }, "input_type"),
            (SessionError::MemoryLimit { needed: None, limit: 1 }, "memory_limit"),
            (SessionError::NotStatic { input: name(), growth: Growth::Joined }, "not_static"),
            (SessionError::MixedWriters { input: name() }, "mixed_writers"),
            (SessionError::NotScattered { input: name(), why: name() }, "not_scattered"),
            (SessionError::EncoderDecoder { input: name() }, "encoder_decoder"),
            (SessionError::PastRead { input: name(), reader: name() }, "past_read"),
            (SessionError::CacheElement { input: name(), element }, "cache_element"),
            (SessionError::NoWriteIndices, "no_write_indices"),
            (SessionError::NoLengths, "no_lengths"),
            (SessionError::RingMetadata("x".parse::<RingSize>().unwrap_err()), "ring_metadata"),
            (SessionError::RingTooSmall { ring }, "ring_too_small"),
            (SessionError::NoLogits, "no_logits"),
            (SessionError::InputUnknown { input: name() }, "input_unknown"),
            (SessionError::Embeddings { input: name() }, "embeddings"),
            (SessionError::State { input: name() }, "state"),
            (SessionError::InputRank { input: name(), rank: 1, expected: vec![] }, "input_rank"),
            (SessionError::TokensFixed { size: 1 }, "tokens_fixed"),
            (SessionError::SizeOpen { input: name(), axis: 1 }, "size_open"),
            (
                SessionError::SizesDiffer { size: ModelSize::Batch, input: name(), got: 1, expected: 1 },
                "sizes_differ",
            ),
            (SessionError::CapacityOpen, "capacity_open"),
            (SessionError::SizeFixed { setting: SessionSetting::Batch, fixed: 1, got: 1 }, "size_fixed"),
            (SessionError::Empty { batch: 1, capacity: 1 }, "empty"),
            (SessionError::LogitsShape { output: name(), shape: vec![], batch: 1, width: 1 }, "logits_shape"),
            (SessionError::LogitsElement { output: name(), element }, "logits_element"),
            (SessionError::BatchFull { batch: 1 }, "batch_full"),
            (SessionError::NoSuchSample { sample }, "no_such_sample"),
            (SessionError::SampleTwice { sample }, "sample_twice"),
            (SessionError::NoTokens { sample }, "no_tokens"),
            (SessionError::NoSamples, "no_samples"),
            (SessionError::NoChunk, "no_chunk"),
            (
                SessionError::CapacityExceeded { sample, cached: 1, tokens: 1, capacity: 1 },
                "capacity_exceeded",
            ),
            (SessionError::TokenUnknown { sample, index: 1, token: 1, vocabulary: None }, "token_unknown"),
            (SessionError::TruncateBeyond { sample, to: 1, cached: 1 }, "truncate_beyond"),
            (SessionError::TruncateRing { sample, to: 1, cached: 1, least: 1, ring }, "truncate_ring"),
            (SessionError::TruncateBegun { sample, to: 1, begun: 2 }, "truncate_begun"),
            (SessionError::TruncateState { sample, to: 1, cached: 2, input: name() }, "truncate_state"),
            (SessionError::Begun { sample }, "begun"),
            (SessionError::NotBegun { sample }, "not_begun"),
            (SessionError::AcceptBeyond { sample, accepted: 2, fed: 1 }, "accept_beyond"),
            (SessionError::NoRoom { needed: 2, free: 1, batch: 1 }, "no_room"),
            (SessionError::NoSuchParent { index: 0, parent: 1, samples: 1 }, "no_such_parent"),
            (SessionError::UndoMemory { needed: 1 }, "undo_memory"),
            (SessionError::NanLogits { sample, index: 1 }, "nan_logits"),
            (SessionError::Interrupted, "interrupted"),
            (SessionError::SavedModel { path: PathBuf::new(), saved: print, model: print }, "saved_model"),
            (SessionError::SavedTensors { path: PathBuf::new(), got: 1, expected: 2 }, "saved_tensors"),
            (
                SessionError::SavedLayout {
                    path: PathBuf::new(),
                    name: name(),
                    saved: None,
                    expected: name(),
                },
                "saved_layout",
            ),
            (SessionError::SavedTooLong { path: PathBuf::new(), tokens: 2, capacity: 1 }, "saved_too_long"),
            (
                SessionError::SavedToken { path: PathBuf::new(), index: 0, token: 1, vocabulary: None },
                "saved_token",
            ),
            (
                SessionError::SavedRows { path: PathBuf::new(), name: name(), rows: 1, needed: 2 },
                "saved_rows_missing",
            ),
            (SessionError::Ragged { first: 1, other: 1, growth: Growth::Joined }, "ragged"),
            (SessionError::PromptEmpty { prompt: 1 }, "prompt_empty"),
            (SessionError::NoPrompts, "no_prompts"),
            (SessionError::NotANumber { prompt: 1 }, "not_a_number"),
            (
                SessionError::PromptTokenUnknown { prompt: 1, index: 1, token: 1, vocabulary: None },
                "prompt_token_unknown",
            ),
            (SessionError::EosUnknown { index: 1, token: 1, vocabulary: None }, "eos_unknown"),
            (
                SessionError::PromptTooLong { prompt: 1, tokens: 1, generated: 1, capacity: 1 },
                "prompt_too_long",
            ),
            (SessionError::OptionRange { setting: GenerateSetting::TopP, value: 2.0 }, "option_range"),
            (SessionError::CapacityUseless, "capacity_useless"),
            (SessionError::SavedUseless, "saved_useless"),
            (SessionError::SavePrompts { prompts: 2 }, "save_prompts"),
            (SessionError::Load { path: PathBuf::new(), engine: name(), message: name() }, "load"),
            (SessionError::Run { engine: name(), message: name() }, "run"),
            (SessionError::CacheLost { cache: name() }, "cache_lost"),
        ];
        for (error, name) in named {
            assert_eq!(error.kind(), name, "{error:?}");
        }
    }
}
