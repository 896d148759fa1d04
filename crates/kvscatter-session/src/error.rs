//! Errors of loading and running decoders.

use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::Fingerprint;
use kvscatter_onnx::convert::RingSize;
use kvscatter_onnx::decoder::Growth;

use crate::sample::Sample;
use crate::saved::SavedError;

/// An error of loading or running a decoder.
///
/// After every error, each sample has the tokens, rows and states that it had before the call. After
/// [`CacheLost`](Self::CacheLost) the session must be opened again.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
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
    TensorTooLarge { element: ElementType, shape: Vec<usize> },
    /// The number of values differs from the number of elements of the shape.
    #[error("shape {shape:?} takes {expected} values, got {got}")]
    ValueCount { shape: Vec<usize>, expected: usize, got: usize },
    /// The size of an engine's memory differs from the size of its tensor.
    #[error("a tensor of {element} of shape {shape:?} takes {expected} bytes, got {got}")]
    ByteCount {
        element: ElementType,
        shape: Vec<usize>,
        /// The number of bytes that the tensor takes.
        expected: usize,
        got: usize,
    },
    /// The type of an input cannot represent an integer that the input needs.
    #[error("{value} does not fit an input of {element}")]
    InputType { element: ElementType, value: i64 },
    /// The caches take more memory than the limit.
    #[error("{} bytes of memory are needed, the limit is {limit} bytes", counted(*needed))]
    MemoryLimit {
        /// The number of bytes that are needed, or `None` if it does not fit into 64 bits.
        needed: Option<u64>,
        limit: u64,
    },

    // The model.
    /// A cache grows, so its present is longer than its past.
    #[error("cache {input:?} grows with every step, and only static caches are run in place: {growth}")]
    NotStatic {
        input: String,
        /// How the cache grows. The message ends with the advice for this kind of growth.
        growth: Growth,
    },
    /// `GroupQueryAttention` writes some caches, and `TensorScatter` writes others.
    #[error("GroupQueryAttention writes some caches, but not {input:?}: one operator must write all caches")]
    MixedWriters { input: String },
    /// No node writes the cache in a way that works in place.
    #[error("cache {input:?} is not written in a way that can be run: {why}")]
    NotScattered {
        input: String,
        /// The reason, as text for the message.
        why: String,
    },
    /// A scatter writes the cache, in the same slots of all samples.
    #[error(
        "{op_type} writes cache {input:?} at the same position of all samples: kvscatter inspect shows whether it can be \
         made static"
    )]
    Scattered { input: String, op_type: String },
    /// An input from an encoder has the layers, not the samples, as its first dimension.
    #[error(
        "input {input:?} from the encoder has the batch at axis {axis}: only inputs whose first axis is the batch are run"
    )]
    EncoderStacked { input: String, axis: usize },
    /// An encoder is given to a decoder without cross caches.
    #[error("the decoder takes nothing from an encoder: run it without one")]
    EncoderUnused,
    /// An encoder was made for another decoder.
    #[error("{}: was made for another decoder (kvscatter convert --encoder-output makes both)", path.display())]
    EncoderOther { path: PathBuf },
    /// A sample of an encoder-decoder is fed before it has the outputs of the encoder.
    #[error("{sample} has no {input:?} from the encoder: set the encoder's outputs before its first token")]
    EncoderMissing { sample: Sample, input: String },
    /// The outputs of an encoder change while a sample has tokens that attend to them.
    #[error(
        "{sample} has {tokens} cached tokens: set the encoder's outputs before its first token, or truncate it to 0"
    )]
    EncoderChanged { sample: Sample, tokens: usize },
    /// An output of an encoder is not an input of the decoder, or is given twice.
    #[error("encoder output {output:?} is no input of the decoder, or is given twice: {}", takes(.inputs))]
    EncoderOutput { output: String, inputs: Vec<String> },
    /// An output of the encoder is absent.
    #[error(
        "the encoder's outputs have no {input:?}, which the decoder takes (kvscatter convert --encoder-output adds it)"
    )]
    EncoderOutputMissing { input: String },
    /// An output of the encoder has another type or shape than the decoder takes.
    #[error("encoder output {input:?} is {element} {shape:?}, but the decoder takes {expected}")]
    EncoderShape { input: String, element: ElementType, shape: Vec<usize>, expected: String },
    /// An input of an encoder is absent, unknown, or of another type or shape.
    #[error("encoder input {input:?} is absent, unknown or of another type or shape: the encoder takes {}", .inputs.join(", "))]
    EncoderInput { input: String, inputs: Vec<String> },
    /// The mask of an encoder has another length than the text.
    #[error(
        "encoder input {mask:?} has {got} positions, but {input:?} has {expected}: a mask has one number for each"
    )]
    EncoderMaskLength { mask: String, got: usize, input: String, expected: usize },
    /// The number of texts of the encoder is not the number of prompts.
    #[error("the encoder has outputs for {texts} texts, but there are {prompts} prompts")]
    EncoderTexts { texts: usize, prompts: usize },
    /// The encoder has another number of positions for another sample, and no mask marks them.
    #[error(
        "encoder output {input:?} has {got} positions and that of another sample has {expected}: texts of different \
         lengths need the decoder's mask of the encoder's positions"
    )]
    EncoderLength { input: String, got: usize, expected: usize },
    /// A node other than the writer reads the past. It may read old or new rows, because past and present are
    /// one buffer.
    #[error(
        "cache {input:?} is also read by {reader}, which may read old or new rows if the cache is written in place"
    )]
    PastRead { input: String, reader: String },
    /// The elements of a cache are narrower than a byte, so two rows may share a byte.
    #[error("cache {input:?} is of {element}, whose rows may not be whole bytes: this is not supported")]
    CacheElement { input: String, element: ElementType },
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
    RingTooSmall { ring: RingSize },
    /// None of the outputs looks like logits of the next token.
    #[error(
        "the model has no output of logits, which has rank 3 and a floating-point type and is not a cache"
    )]
    NoLogits,
    /// The graph does not show which values an input needs.
    #[error(
        "input {input:?} cannot be fed: the graph does not show whether it is tokens, positions, a mask or lengths"
    )]
    InputUnknown { input: String },
    /// The model takes embeddings in place of token ids.
    #[error("input {input:?} takes embeddings: sessions feed token ids, and have no embedding table")]
    Embeddings { input: String },
    /// The rank of an input differs from the rank of the values that it is fed.
    #[error("input {input:?} has rank {rank}, must have rank {}", ranks(expected))]
    InputRank { input: String, rank: usize, expected: Vec<usize> },
    /// The model takes a fixed number of tokens other than 1.
    #[error("the model takes exactly {size} tokens in a step, must take 1 or an open number")]
    TokensFixed {
        /// The number of tokens of each sample that the model takes in a step.
        size: usize,
    },
    /// A dimension of a cache or state other than batch and sequence is open.
    #[error("dimension {axis} of {input:?} is open: only batch and sequence may be open")]
    SizeOpen {
        input: String,
        /// The index of the dimension, counted from 0.
        axis: usize,
    },
    /// Two tensors declare different values for one size.
    #[error("{size} is {expected}, but {input:?} has {got}")]
    SizesDiffer { size: ModelSize, input: String, got: usize, expected: usize },
    /// Neither the model nor the caller gives the capacity.
    #[error("the caches have an open capacity: one must be given")]
    CapacityOpen,
    /// The caller gives another size than the one that the model fixes.
    #[error("the model's {} is fixed to {fixed}, got {got}", setting.name())]
    SizeFixed { setting: SessionSetting, fixed: usize, got: usize },
    /// The batch or the capacity is 0.
    #[error("a batch of {batch} and a capacity of {capacity}: both must be at least 1")]
    Empty { batch: usize, capacity: usize },
    /// The shape of the logits is not that of a decoder's logits.
    #[error(
        "output {output:?} is of shape {shape:?}, for {batch} samples of {width} tokens it must be [{batch}, {width} or 1, vocabulary]"
    )]
    LogitsShape {
        output: String,
        shape: Vec<usize>,
        batch: usize,
        /// The number of tokens of each sample in the run, padding included.
        width: usize,
    },
    /// The logits are of a type that cannot be converted to float32.
    #[error("output {output:?} is of {element}, which cannot be converted to float32")]
    LogitsElement { output: String, element: ElementType },
    /// The columns of a convolution's state have another shape or type than those of the state and the tokens.
    #[error(
        "output {output:?} is {element} of shape {shape:?}, but the state and the new columns are {expected:?}"
    )]
    ColumnsShape { output: String, element: ElementType, shape: Vec<usize>, expected: Vec<usize> },

    // The calls of a running batch.
    /// The batch has no free index.
    #[error("the batch of {batch} is full")]
    BatchFull { batch: usize },
    /// The sample has been removed, or it belongs to another session.
    #[error("{sample} is not in this batch: it was removed, or never added here")]
    NoSuchSample { sample: Sample },
    /// A call lists a sample more than once.
    #[error("{sample} is listed twice")]
    SampleTwice { sample: Sample },
    /// A step lists a sample with an empty list of tokens.
    #[error("{sample} has no tokens: at least 1 is needed")]
    NoTokens { sample: Sample },
    /// A step gives ids of blocks to a model that takes none.
    #[error("the model has no input block_sequence_ids, so its tokens cannot be in blocks")]
    NoBlockIds,
    /// A sample has another number of ids of blocks than of tokens.
    #[error("{sample} has {tokens} tokens and {ids} ids of blocks: each token needs one, -1 for text")]
    BlockCount { sample: Sample, tokens: usize, ids: usize },
    /// An id of a block is below that of text.
    #[error("{sample}: the block of token {index} is {id}, but ids are at least 0, or -1 for text")]
    BlockId {
        sample: Sample,
        /// The index of the token among the new tokens of the sample, counted from 0.
        index: usize,
        id: i64,
    },
    /// A block has tokens before and after a token of another block or of text.
    #[error(
        "{sample}: token {index} is in block {id}, which ended before: blocks must be consecutive tokens"
    )]
    BlockOverlap {
        sample: Sample,
        /// The index of the token among the new tokens of the sample, counted from 0.
        index: usize,
        id: i64,
    },
    /// The model cannot take all tokens of a block in one run.
    #[error("{sample}: one run cannot take block {id} up to token {index}, and a block must not be split")]
    BlockSplit {
        sample: Sample,
        /// The index of the first token of the next run among the new tokens of the sample, counted from 0.
        index: usize,
        id: i64,
    },
    /// A step lists no samples.
    #[error("no sample is given tokens")]
    NoSamples,
    /// A chunk of a prefill has 0 tokens.
    #[error("a chunk of 0 tokens: at least 1 is needed")]
    NoChunk,
    /// The cache has no room for the new tokens of a sample.
    #[error("{sample}: {cached} + {tokens} tokens exceed the capacity of {capacity} tokens")]
    CapacityExceeded { sample: Sample, cached: usize, tokens: usize, capacity: usize },
    /// The vocabulary does not contain a token.
    #[error("{sample}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    TokenUnknown {
        sample: Sample,
        /// The index of the token among the new tokens of the sample, counted from 0.
        index: usize,
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// A sample is to be truncated to more tokens than are cached.
    #[error("{sample} cannot be truncated to {to}: {cached} tokens are cached")]
    TruncateBeyond { sample: Sample, to: usize, cached: usize },
    /// A sample cannot be truncated that far, because a ring no longer has the rows that its next tokens would see.
    #[error(
        "{sample} cannot be truncated to {to} of {cached} tokens: a ring of {} slots for a window of {} allows {least} or \
         more, or 0", ring.capacity, ring.window
    )]
    TruncateRing { sample: Sample, to: usize, cached: usize, least: usize, ring: RingSize },
    /// A sample cannot be truncated below the point that [`begin`](crate::KvSession::begin) set.
    #[error(
        "{sample} cannot be truncated to {to}: it had {begun} tokens at begin, so commit it or roll it back first"
    )]
    TruncateBegun { sample: Sample, to: usize, begun: usize },
    /// A sample of a model with states cannot go back to this number of tokens.
    #[error(
        "{sample} cannot be truncated to {to} of {cached} tokens: input {input:?} is a state, which has no rows to drop; \
         0 and the tokens at begin are possible, and accept keeps any of the tokens since begin"
    )]
    TruncateState { sample: Sample, to: usize, cached: usize, input: String },
    /// A point is set for a sample that has one.
    #[error("{sample} has begun already: commit it or roll it back first")]
    Begun { sample: Sample },
    /// A sample has no point to go back to.
    #[error("{sample} has not begun, so there is nothing to commit, accept or roll back")]
    NotBegun { sample: Sample },
    /// More tokens are accepted than were fed.
    #[error("{sample} cannot accept {accepted} tokens: {fed} were fed since begin")]
    AcceptBeyond { sample: Sample, accepted: usize, fed: usize },
    /// The indices of a path do not ascend.
    #[error("rows[{index}] = {row} of {sample}: must be above {before}, the index before it")]
    PathOrder {
        sample: Sample,
        /// The index in the path, counted from 0.
        index: usize,
        row: usize,
        before: usize,
    },
    /// A path has a token that was not fed.
    #[error("rows[{index}] = {row} of {sample}: must be below {fed}, the number of tokens fed since begin")]
    PathBeyond {
        sample: Sample,
        /// The index in the path, counted from 0.
        index: usize,
        row: usize,
        fed: usize,
    },
    /// The batch has fewer free indices than copies are needed.
    #[error("{needed} copies do not fit: {free} of the {batch} batch indices are free")]
    NoRoom {
        needed: usize,
        /// The number of batch indices that are free or become free.
        free: usize,
        batch: usize,
    },
    /// A parent is not an index of the list of samples.
    #[error("parents[{index}] = {parent}: must be below {samples}, the number of samples")]
    NoSuchParent {
        /// The index in the list of parents, counted from 0.
        index: usize,
        parent: usize,
        samples: usize,
    },
    /// There is no memory for the rows with which a sample could go back.
    #[error("cannot allocate {needed} bytes to copy rows that a step overwrites")]
    UndoMemory { needed: u64 },
    /// The logits after a token contain NaN, and the session refuses that. It is the first such token of the run. A
    /// later token may have caused it, because attention may multiply hidden rows by zero.
    #[error("{sample}: the logits after new token {index} contain NaN")]
    NanLogits {
        sample: Sample,
        /// The index of the token among the new tokens of the sample, counted from 0.
        index: usize,
    },
    /// The function of [`interrupt_when`](crate::KvSession::interrupt_when) has ended a step.
    #[error("the step was interrupted")]
    Interrupted,
    /// The sample of a file was saved with another model.
    #[error("{}: the sample was saved with model {saved}, and this model is {model}", path.display())]
    SavedModel { path: PathBuf, saved: Fingerprint, model: Fingerprint },
    /// The file has another number of caches and states than the model.
    #[error("{}: the file has {got} caches and states, and the model has {expected}", path.display())]
    SavedTensors { path: PathBuf, got: usize, expected: usize },
    /// A cache or state has another layout in the file than in the session.
    #[error(
        "{}: {name:?} is {}, and must be {expected}",
        path.display(),
        saved.as_deref().unwrap_or("not in the file")
    )]
    SavedLayout {
        path: PathBuf,
        name: String,
        /// The layout in the file, or `None` if the file does not contain this input.
        saved: Option<String>,
        /// The layout in the session, with as many rows as the file has tokens.
        expected: String,
    },
    /// The sample of a file has more tokens than fit.
    #[error("{}: the sample has {tokens} tokens, and the capacity is {capacity} tokens", path.display())]
    SavedTooLong { path: PathBuf, tokens: usize, capacity: usize },
    /// The vocabulary does not contain a token of the file.
    #[error("{}: token {index} is {token}, which the model does not have{}", path.display(), known(*vocabulary))]
    SavedToken {
        path: PathBuf,
        /// The index of the token, counted from 0.
        index: usize,
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// The file has fewer rows of a ring than the next token sees.
    #[strum(serialize = "saved_rows_missing")]
    #[error("{}: {name:?} has {rows} rows, and the next token sees {needed}", path.display())]
    SavedRows {
        path: PathBuf,
        name: String,
        rows: usize,
        /// The number of rows that the next token sees.
        needed: usize,
    },
    /// The prompts have different lengths, but growing caches need the same length for all samples.
    #[error("prompts of {first} and {other} tokens: a cache that grows takes one length; {growth}")]
    Ragged {
        first: usize,
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
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// The vocabulary does not contain a token that ends a sample.
    #[error("eos[{index}] is {token}, which the model does not have{}", known(*vocabulary))]
    EosUnknown {
        /// The index of the token in the list, counted from 0.
        index: usize,
        token: i64,
        /// The number of tokens in the vocabulary, or `None` if it is not known.
        vocabulary: Option<usize>,
    },
    /// A prompt, or a prompt and the tokens to be generated after it, exceed the capacity.
    #[error("prompt {prompt}: {}", excess(*tokens, *generated, *capacity))]
    PromptTooLong {
        /// The index of the prompt, counted from 0.
        prompt: usize,
        tokens: usize,
        /// The number of tokens to be generated, which is at least 1. The last one takes no slot.
        generated: usize,
        capacity: usize,
    },
    /// An option of generation is outside its range.
    #[error("{setting} is {value}, must be {}", setting.range())]
    OptionRange { setting: GenerateSetting, value: f32 },
    /// The caller gives a capacity, but the caches grow.
    #[error("the caches grow with every step, so no capacity can be given")]
    CapacityUseless,

    /// A prompt is to be saved or loaded, but the caches grow.
    #[error("the caches grow with every step, so no prompt can be saved or loaded")]
    SavedUseless,
    /// Several prompts are to be saved to one file.
    #[error("{prompts} prompts cannot be saved: a file has one prompt")]
    SavePrompts { prompts: usize },

    // The engine.
    /// The engine cannot load the model.
    #[error("{}: {engine} cannot load the model: {message}", path.display())]
    Load { path: PathBuf, engine: String, message: String },
    /// The engine cannot run a step of the model.
    #[error("{engine} cannot run the model: {message}")]
    Run { engine: String, message: String },
    /// The engine lost a cache in a run that failed.
    #[error("the engine lost cache {cache:?} in a run that failed: the session must be opened again")]
    CacheLost { cache: String },
}

/// A size that several tensors of a model declare. It is displayed as `batch`, `capacity` or `vocabulary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ModelSize {
    /// The number of samples.
    Batch,
    /// The number of slots of each cache.
    Capacity,
    /// The number of tokens in the vocabulary, the last dimension of the logits.
    Vocabulary,
}

/// A setting of a session. Each interface to sessions has its name for the setting, such as an option or a
/// keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
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
        self.into()
    }
}

/// An option of generation that has a range. It is displayed as the name of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
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
        self.into()
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

impl SessionError {
    /// Returns the stable name of the error, such as `capacity_exceeded`. An error about the model's file or
    /// graph has the name of [`OnnxError::kind`](kvscatter_onnx::OnnxError::kind), and an error about a saved sample
    /// that of [`SavedError::kind`].
    ///
    /// The name does not change between versions, even if the variant gets a new name.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Onnx(error) => error.kind(),
            Self::Saved(error) => error.kind(),
            _ => self.into(),
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

/// Formats the inputs that a decoder takes from an encoder.
fn takes(inputs: &[String]) -> String {
    match inputs {
        [] => "the decoder takes nothing from an encoder".to_owned(),
        inputs => format!("it takes {}", inputs.join(", ")),
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
    use strum::VariantNames;

    use super::{SavedError, SessionError, SessionSetting};

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
        let names = "onnx saved tensor_too_large value_count byte_count input_type memory_limit \
            not_static mixed_writers not_scattered scattered encoder_stacked encoder_unused encoder_other encoder_missing \
            encoder_changed encoder_output encoder_output_missing encoder_shape encoder_input \
            encoder_mask_length encoder_texts encoder_length past_read cache_element \
            no_write_indices no_lengths ring_metadata ring_too_small no_logits input_unknown \
            embeddings input_rank tokens_fixed size_open sizes_differ capacity_open \
            size_fixed empty logits_shape logits_element columns_shape batch_full no_such_sample sample_twice \
            no_tokens no_block_ids block_count block_id block_overlap block_split no_samples no_chunk \
            capacity_exceeded token_unknown truncate_beyond \
            truncate_ring truncate_begun truncate_state begun not_begun accept_beyond path_order \
            path_beyond no_room no_such_parent undo_memory nan_logits interrupted saved_model saved_tensors \
            saved_layout saved_too_long saved_token saved_rows_missing ragged prompt_empty \
            no_prompts not_a_number prompt_token_unknown eos_unknown prompt_too_long \
            option_range capacity_useless saved_useless save_prompts load run cache_lost";
        assert_eq!(SessionError::VARIANTS.join(" "), names);
        assert_eq!(SessionError::Interrupted.kind(), "interrupted");
        assert_eq!(
            SessionError::Onnx(kvscatter_onnx::GraphError::GraphMissing.into()).kind(),
            "graph_missing"
        );
        assert_eq!(SessionError::Saved(SavedError::NotSaved).kind(), "saved_not_saved");
    }
}
