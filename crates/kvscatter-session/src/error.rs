//! Errors of loading and running decoders.

use std::fmt;
use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::decoder::Growth;

use crate::Sample;

/// The reason why a decoder cannot be loaded or run.
///
/// A session returns most errors before it writes anything. After one of these errors, rows beyond the
/// samples' cached tokens may have been written:
///
/// - [`Run`](Self::Run) and [`CacheLost`](Self::CacheLost);
/// - [`NoLogits`](Self::NoLogits), [`LogitsShape`](Self::LogitsShape) and
///   [`LogitsElement`](Self::LogitsElement) of a step;
/// - [`TokenUnknown`](Self::TokenUnknown), if only the first run shows the size of the vocabulary;
/// - [`TensorTooLarge`](Self::TensorTooLarge), if there is no memory for a later run of the step.
///
/// Every error leaves the counts of cached tokens unchanged. After [`CacheLost`](Self::CacheLost) the session
/// must be opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The model's file or graph has an error.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::OnnxError),

    // Memory.
    /// No buffer can hold such a tensor, or the system has no memory for it.
    #[error("no memory for a tensor of {element} of shape {shape:?}")]
    TensorTooLarge {
        /// The element type.
        element: ElementType,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The number of values is not the number of elements of the shape.
    #[error("shape {shape:?} takes {expected} values, got {got}")]
    ValueCount {
        /// The shape.
        shape: Vec<usize>,
        /// The number of elements of the shape.
        expected: usize,
        /// The number of values.
        got: usize,
    },
    /// An engine's memory does not have the size of its tensor.
    #[error("a tensor of {element} of shape {shape:?} takes {expected} bytes, got {got}")]
    ByteCount {
        /// The element type.
        element: ElementType,
        /// The shape.
        shape: Vec<usize>,
        /// The number of bytes of the tensor.
        expected: usize,
        /// The number of bytes of the memory.
        got: usize,
    },
    /// The type of an input cannot represent an integer that the input must be fed.
    #[error("{value} does not fit an input of {element}")]
    InputType {
        /// The type of the input.
        element: ElementType,
        /// The integer.
        value: i64,
    },
    /// The caches need more memory than the limit.
    #[error("{} bytes of memory are needed, the limit is {limit} bytes", counted(*needed))]
    MemoryLimit {
        /// The bytes that are needed, or `None` if their number does not fit into 64 bits.
        needed: Option<u64>,
        /// The limit in bytes.
        limit: u64,
    },

    // The model.
    /// A cache grows, so its present is longer than its past.
    #[error("cache {input:?} grows with every step, and only static caches are run in place: {growth}")]
    NotStatic {
        /// The cache's past.
        input: String,
        /// The way in which the cache grows. The message ends with it.
        growth: Growth,
    },
    /// No node writes a cache in a way that works in place.
    #[error("cache {input:?} is not written in a way that can be run: {why}")]
    NotScattered {
        /// The cache's past.
        input: String,
        /// The reason.
        why: String,
    },
    /// Another node reads a cache's past. It may read old or new rows, because the present is the same
    /// buffer.
    #[error(
        "cache {input:?} is also read by {reader}, which may read old or new rows if the cache is written in place"
    )]
    PastRead {
        /// The cache's past.
        input: String,
        /// The other node.
        reader: String,
    },
    /// A cache has elements of less than a byte, so two rows may share a byte.
    #[error("cache {input:?} is of {element}, whose rows may not be whole bytes: this is not supported")]
    CacheElement {
        /// The cache's past.
        input: String,
        /// Its element type.
        element: ElementType,
    },
    /// No input gives the slots that a step must write.
    #[error("the model has no input write_indices, so the slots of a step cannot be set")]
    NoWriteIndices,
    /// No output looks like logits of the next token.
    #[error(
        "the model has no output of logits, which has rank 3 and a floating-point type and is not a cache"
    )]
    NoLogits,
    /// The graph does not show which values an input needs.
    #[error(
        "input {input:?} cannot be fed: the graph does not show whether it is tokens, positions, a mask or lengths"
    )]
    InputUnknown {
        /// The input.
        input: String,
    },
    /// The rank of an input is not the rank of the values that it is fed.
    #[error("input {input:?} has rank {rank}, must have rank {}", ranks(expected))]
    InputRank {
        /// The input.
        input: String,
        /// The rank of the input.
        rank: usize,
        /// The ranks that are possible.
        expected: Vec<usize>,
    },
    /// The model takes a fixed number of tokens other than 1.
    #[error("the model takes exactly {size} tokens in a step, must take 1 or an open number")]
    TokensFixed {
        /// The number of tokens.
        size: usize,
    },
    /// A dimension of a cache other than batch and sequence is open.
    #[error("dimension {axis} of cache {input:?} is open: only batch and sequence may be open")]
    SizeOpen {
        /// The cache's past.
        input: String,
        /// The dimension.
        axis: usize,
    },
    /// Two tensors declare different values of one size.
    #[error("{size} is {expected}, but {input:?} has {got}")]
    SizesDiffer {
        /// The size.
        size: ModelSize,
        /// The tensor that differs from the earlier ones.
        input: String,
        /// The value that this tensor declares.
        got: usize,
        /// The value that the earlier ones declare.
        expected: usize,
    },
    /// The model leaves the capacity open, and none is given.
    #[error("the caches have an open capacity: one must be given")]
    CapacityOpen,
    /// The model fixes a size, and another size is asked for.
    #[error("the model's {} is fixed to {fixed}, got {got}", setting.name())]
    SizeFixed {
        /// The setting with which the size is asked for.
        setting: SessionSetting,
        /// The size that the model has.
        fixed: usize,
        /// The size that is asked for.
        got: usize,
    },
    /// The batch or the capacity is 0.
    #[error("a batch of {batch} and a capacity of {capacity}: both must be at least 1")]
    Empty {
        /// The batch.
        batch: usize,
        /// The capacity.
        capacity: usize,
    },
    /// The logits do not have a decoder's shape.
    #[error(
        "output {output:?} is of shape {shape:?}, for {batch} samples of {width} tokens it must be [{batch}, {width} or 1, vocabulary]"
    )]
    LogitsShape {
        /// The output.
        output: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The number of samples of the run.
        batch: usize,
        /// The number of tokens of each sample in the run, padding included.
        width: usize,
    },
    /// The logits are of a type that cannot be converted to float32.
    #[error("output {output:?} is of {element}, which cannot be converted to float32")]
    LogitsElement {
        /// The output.
        output: String,
        /// Its element type.
        element: ElementType,
    },

    // The calls of a running batch.
    /// The batch has no free index.
    #[error("the batch of {batch} is full")]
    BatchFull {
        /// The size of the batch.
        batch: usize,
    },
    /// The sample was removed, or belongs to another session.
    #[error("{sample} is not in this batch: it was removed, or never added here")]
    NoSuchSample {
        /// The sample.
        sample: Sample,
    },
    /// A step has a sample more than once.
    #[error("{sample} is given tokens twice in one step")]
    SampleTwice {
        /// The sample.
        sample: Sample,
    },
    /// A step has a sample with an empty list of tokens.
    #[error("{sample} has no tokens: at least 1 is needed")]
    NoTokens {
        /// The sample.
        sample: Sample,
    },
    /// A step has no sample.
    #[error("no sample is given tokens")]
    NoSamples,
    /// The chunks of a prefill have 0 tokens.
    #[error("a chunk of 0 tokens: at least 1 is needed")]
    NoChunk,
    /// A sample has no room for its new tokens.
    #[error("{sample}: {cached} + {tokens} tokens exceed the cache's capacity of {capacity}")]
    CapacityExceeded {
        /// The sample.
        sample: Sample,
        /// The number of its cached tokens.
        cached: usize,
        /// The number of its new tokens.
        tokens: usize,
        /// The capacity.
        capacity: usize,
    },
    /// A token is not in the vocabulary.
    #[error("{sample}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    TokenUnknown {
        /// The sample.
        sample: Sample,
        /// The index of the token among the sample's new tokens.
        index: usize,
        /// The token.
        token: i64,
        /// The size of the vocabulary, if it is known.
        vocabulary: Option<usize>,
    },
    /// A sample cannot keep more tokens than are cached.
    #[error("{sample} cannot be truncated to {to}: {cached} tokens are cached")]
    TruncateBeyond {
        /// The sample.
        sample: Sample,
        /// The number of tokens to keep.
        to: usize,
        /// The number of cached tokens.
        cached: usize,
    },
    /// The prompts have different lengths, but growing caches need one length for all samples.
    #[error("prompts of {first} and {other} tokens: a cache that grows takes one length; {growth}")]
    Ragged {
        /// The number of tokens of the first prompt.
        first: usize,
        /// The number of tokens of the first prompt with another length.
        other: usize,
        /// The way in which the caches grow. The message ends with it.
        growth: Growth,
    },
    /// A prompt has no tokens.
    #[error("prompt {prompt} is empty: at least one token is needed")]
    PromptEmpty {
        /// The index of the prompt.
        prompt: usize,
    },
    /// There is no prompt.
    #[error("no prompt is given")]
    NoPrompts,
    /// The logits after a prompt are missing or all NaN, so there is no largest one.
    #[error("prompt {prompt}: the logits after its last token are missing or not numbers")]
    NotANumber {
        /// The index of the prompt.
        prompt: usize,
    },
    /// A token of a prompt is not in the vocabulary.
    #[error("prompt {prompt}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    PromptTokenUnknown {
        /// The index of the prompt.
        prompt: usize,
        /// The index of the token in the prompt.
        index: usize,
        /// The token.
        token: i64,
        /// The size of the vocabulary, if it is known.
        vocabulary: Option<usize>,
    },
    /// A prompt and the tokens to be generated exceed the capacity.
    #[error(
        "prompt {prompt}: {tokens} tokens and {generated} to be generated exceed the cache's capacity of {capacity}; the last token takes no slot"
    )]
    PromptTooLong {
        /// The index of the prompt.
        prompt: usize,
        /// The number of its tokens.
        tokens: usize,
        /// The number of tokens to be generated.
        generated: usize,
        /// The capacity.
        capacity: usize,
    },
    /// A capacity is given for growing caches.
    #[error("the caches grow with every step, so no capacity can be given")]
    CapacityUseless,

    // The engine.
    /// The engine cannot load the model.
    #[error("{}: {engine} cannot load the model: {message}", path.display())]
    Load {
        /// The model's file.
        path: PathBuf,
        /// The name and version of the engine.
        engine: String,
        /// The engine's message.
        message: String,
    },
    /// The engine cannot run the model.
    #[error("{engine} cannot run the model: {message}")]
    Run {
        /// The name and version of the engine.
        engine: String,
        /// The engine's message.
        message: String,
    },
    /// The engine lost a cache in a run that failed.
    #[error("{engine} lost cache {cache:?} in a run that failed: the session must be opened again")]
    CacheLost {
        /// The name and version of the engine.
        engine: String,
        /// The cache's past.
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
    /// The number of tokens that the model has, which is the last dimension of the logits.
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

/// A setting of a session. Each interface has a different name for it, such as an option or a keyword.
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

impl SessionError {
    /// Returns the stable name of the error, such as `capacity_exceeded`. An error of the model's file or
    /// graph has the name of [`OnnxError::kind`](kvscatter_onnx::OnnxError::kind).
    ///
    /// The name does not change between versions, even if the variant is renamed.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Onnx(error) => error.kind(),
            Self::TensorTooLarge { .. } => "tensor_too_large",
            Self::ValueCount { .. } => "value_count",
            Self::ByteCount { .. } => "byte_count",
            Self::InputType { .. } => "input_type",
            Self::MemoryLimit { .. } => "memory_limit",
            Self::NotStatic { .. } => "not_static",
            Self::NotScattered { .. } => "not_scattered",
            Self::PastRead { .. } => "past_read",
            Self::CacheElement { .. } => "cache_element",
            Self::NoWriteIndices => "no_write_indices",
            Self::NoLogits => "no_logits",
            Self::InputUnknown { .. } => "input_unknown",
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
            Self::Ragged { .. } => "ragged",
            Self::PromptEmpty { .. } => "prompt_empty",
            Self::NoPrompts => "no_prompts",
            Self::NotANumber { .. } => "not_a_number",
            Self::PromptTokenUnknown { .. } => "prompt_token_unknown",
            Self::PromptTooLong { .. } => "prompt_too_long",
            Self::CapacityUseless => "capacity_useless",
            Self::Load { .. } => "load",
            Self::Run { .. } => "run",
            Self::CacheLost { .. } => "cache_lost",
        }
    }

    /// Returns the setting that can be changed to avoid the error, if there is one.
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

/// Returns a number of bytes as text, or words for a number that does not fit into 64 bits.
fn counted(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "uncountably many".to_owned(), |bytes| bytes.to_string())
}

/// Returns the ranks as text, such as `1 or 2`.
fn ranks(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

/// Returns text such as `: it has 0 to 255`, or nothing if the size of the vocabulary is unknown.
fn known(vocabulary: Option<usize>) -> String {
    vocabulary
        .map_or_else(String::new, |vocabulary| format!(": it has 0 to {}", vocabulary.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::{Growth, ModelSize, PathBuf, Sample, SessionError, SessionSetting};

    #[test]
    fn names_are_stable() {
        let (sample, element) = (Sample { batch_index: 0, serial: 0 }, kvscatter::ElementType::Float32);
        let name = || "x".to_owned();
        let named = [
            (SessionError::Onnx(kvscatter_onnx::OnnxError::GraphMissing), "graph_missing"),
            (SessionError::TensorTooLarge { element, shape: vec![] }, "tensor_too_large"),
            (SessionError::ValueCount { shape: vec![], expected: 1, got: 1 }, "value_count"),
            (SessionError::ByteCount { element, shape: vec![], expected: 1, got: 1 }, "byte_count"),
            (SessionError::InputType { element, value: 1 }, "input_type"),
            (SessionError::MemoryLimit { needed: None, limit: 1 }, "memory_limit"),
            (SessionError::NotStatic { input: name(), growth: Growth::Joined }, "not_static"),
            (SessionError::NotScattered { input: name(), why: name() }, "not_scattered"),
            (SessionError::PastRead { input: name(), reader: name() }, "past_read"),
            (SessionError::CacheElement { input: name(), element }, "cache_element"),
            (SessionError::NoWriteIndices, "no_write_indices"),
            (SessionError::NoLogits, "no_logits"),
            (SessionError::InputUnknown { input: name() }, "input_unknown"),
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
            (SessionError::Ragged { first: 1, other: 1, growth: Growth::Joined }, "ragged"),
            (SessionError::PromptEmpty { prompt: 1 }, "prompt_empty"),
            (SessionError::NoPrompts, "no_prompts"),
            (SessionError::NotANumber { prompt: 1 }, "not_a_number"),
            (
                SessionError::PromptTokenUnknown { prompt: 1, index: 1, token: 1, vocabulary: None },
                "prompt_token_unknown",
            ),
            (
                SessionError::PromptTooLong { prompt: 1, tokens: 1, generated: 1, capacity: 1 },
                "prompt_too_long",
            ),
            (SessionError::CapacityUseless, "capacity_useless"),
            (SessionError::Load { path: PathBuf::new(), engine: name(), message: name() }, "load"),
            (SessionError::Run { engine: name(), message: name() }, "run"),
            (SessionError::CacheLost { engine: name(), cache: name() }, "cache_lost"),
        ];
        for (error, name) in named {
            assert_eq!(error.kind(), name, "{error:?}");
        }
    }
}
