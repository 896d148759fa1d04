//! Why a decoder cannot be run, or not so.

use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::decoder::Growth;

use crate::Sample;

/// Why a decoder cannot be run, or not so.
///
/// A session's errors come before anything is written, except what only a run shows: [`Run`](Self::Run) and
/// [`CacheLost`](Self::CacheLost); [`NoLogits`](Self::NoLogits), [`LogitsShape`](Self::LogitsShape) and
/// [`LogitsElement`](Self::LogitsElement) of a step; [`TokenUnknown`](Self::TokenUnknown) where the first run tells how
/// many tokens there are; [`TensorTooLarge`](Self::TensorTooLarge) where memory for a later run of the step is not to be
/// had. After those the lengths are as they were, and rows after them may have been written; after
/// [`CacheLost`](Self::CacheLost) the session has to be opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum SessionError {
    /// The model's file or graph.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::OnnxError),

    // Memory.
    /// No buffer holds such a tensor, or the system has no memory for it.
    #[error("no memory for a tensor of {element} of shape {shape:?}")]
    TensorTooLarge { element: ElementType, shape: Vec<usize> },
    /// The values do not fill the shape.
    #[error("shape {shape:?} takes {expected} values, got {got}")]
    ValueCount { shape: Vec<usize>, expected: usize, got: usize },
    /// An engine's own memory is not what the tensor should be.
    #[error("a tensor of {element} of shape {shape:?} takes {expected} bytes, got {got}")]
    ByteCount { element: ElementType, shape: Vec<usize>, expected: usize, got: usize },
    /// An integer has to be fed in a type that does not hold it.
    #[error("{value} does not fit an input of {element}")]
    InputType { element: ElementType, value: i64 },
    /// The files claim more than is allowed.
    #[error("{} bytes of memory are needed, the limit is {limit} bytes", counted(*needed))]
    MemoryLimit { needed: Option<u64>, limit: u64 },

    // What the model is.
    /// Its present is longer than its past.
    #[error("cache {input:?} grows with every step, and only static caches are run in place: {growth}")]
    NotStatic { input: String, growth: Growth },
    /// What writes it, if anything does, is not known to write in place.
    #[error("cache {input:?} is not written in a way that can be run: {why}")]
    NotScattered { input: String, why: String },
    /// Past and present are one buffer: what else reads it may meet old rows or new ones.
    #[error(
        "cache {input:?} is read by {reader} beside what writes it: in place, that may meet old rows or new ones"
    )]
    PastRead { input: String, reader: String },
    /// Rows of such elements may share a byte.
    #[error("cache {input:?} is of {element}: its rows need not be whole bytes, and are not run")]
    CacheElement { input: String, element: ElementType },
    /// No input gives the slots that a step writes.
    #[error("the model takes no write_indices: where each sample is written cannot be said")]
    NoWriteIndices,
    /// No output looks like scores of the next token.
    #[error("the model has no output of logits: of rank 3 and a floating-point type, beside its caches")]
    NoLogits,
    /// Nothing is known that feeds it.
    #[error(
        "input {input:?} cannot be fed: the graph does not show whether it is tokens, positions, a mask or lengths"
    )]
    InputUnknown { input: String },
    /// It is fed with another rank.
    #[error("input {input:?} has rank {rank}, it can be fed with rank {}", ranks(expected))]
    InputRank { input: String, rank: usize, expected: Vec<usize> },
    /// The model takes a fixed number of tokens.
    #[error("the model takes exactly {size} tokens a step; one, or an open number of them, can be run")]
    TokensFixed { size: usize },
    /// A dimension that nothing tells.
    #[error("dimension {axis} of cache {input:?} is open: only batch and sequence may be")]
    SizeOpen { input: String, axis: usize },
    /// Two places say different things.
    #[error("{what} is {expected}, but {input:?} has {got}")]
    SizesDiffer { what: &'static str, input: String, got: usize, expected: usize },
    /// The capacity is neither declared nor given.
    #[error("the caches have an open capacity: one must be given")]
    CapacityOpen,
    /// Another one is asked for than the model has.
    #[error("the model's {} is fixed to {fixed}, got {got}", what.name())]
    SizeFixed { what: Setting, fixed: usize, got: usize },
    /// A size that no session can have.
    #[error("a batch of {batch} and a capacity of {capacity}: both must be at least 1")]
    Empty { batch: usize, capacity: usize },
    /// The logits are not what a decoder gives.
    #[error(
        "output {output:?} is of shape {shape:?}, for {batch} samples of {width} tokens it must be [{batch}, {width} or 1, vocabulary]"
    )]
    LogitsShape { output: String, shape: Vec<usize>, batch: usize, width: usize },
    /// They are no numbers that can be compared.
    #[error("output {output:?} is of {element}, which is not compared")]
    LogitsElement { output: String, element: ElementType },

    // What is asked of a running batch.
    /// Every place is taken.
    #[error("the batch has {batch} places, and all are taken")]
    BatchFull { batch: usize },
    /// It was removed, or is another session's.
    #[error("{sample} is not in this batch: it was removed, or never added here")]
    NoSuchSample { sample: Sample },
    /// It is named more than once in one step.
    #[error("{sample} is given tokens twice in one step")]
    SampleTwice { sample: Sample },
    /// There is nothing to run.
    #[error("{sample} is given no tokens: at least 1 is needed")]
    NoTokens { sample: Sample },
    /// No sample is named.
    #[error("no sample is given tokens")]
    NoSamples,
    /// A chunk of nothing never ends.
    #[error("a chunk of 0 tokens: at least 1 is needed")]
    NoChunk,
    /// It would outgrow its capacity.
    #[error("{sample}: {length} + {tokens} tokens exceed the cache's capacity of {capacity}")]
    CapacityExceeded { sample: Sample, length: usize, tokens: usize, capacity: usize },
    /// The model has no such token.
    #[error("{sample}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    TokenUnknown { sample: Sample, index: usize, token: i64, vocabulary: Option<usize> },
    /// There is less to keep.
    #[error("{sample} cannot be truncated to {to}: its length is {length}")]
    TruncateBeyond { sample: Sample, to: usize, length: usize },
    /// A growing cache has one length for all samples.
    #[error("prompts of {first} and {other} tokens: a cache that grows takes one length; {growth}")]
    Ragged { first: usize, other: usize, growth: Growth },
    /// There is nothing to continue.
    #[error("prompt {prompt} is empty: at least one token is needed")]
    PromptEmpty { prompt: usize },
    /// There is nothing to generate from.
    #[error("no prompt is given")]
    NoPrompts,
    /// Logits that no number is the largest of.
    #[error("prompt {prompt}: the scores after its last token are missing or not numbers")]
    NotANumber { prompt: usize },
    /// The model has no such token.
    #[error("prompt {prompt}: token {index} is {token}, which the model does not have{}", known(*vocabulary))]
    PromptTokenUnknown { prompt: usize, index: usize, token: i64, vocabulary: Option<usize> },
    /// It would outgrow its capacity.
    #[error(
        "prompt {prompt}: tokens, {tokens} of its own and {generated} to be generated, the last of which is not fed, exceed the cache's capacity of {capacity}"
    )]
    PromptTooLong { prompt: usize, tokens: usize, generated: usize, capacity: usize },
    /// It has none.
    #[error("the caches grow with every step: they have no capacity that could be given")]
    CapacityUseless,

    // An engine's verdicts on models.
    /// It does not take the model.
    #[error("{}: {engine} cannot load it: {message}", path.display())]
    Load { path: PathBuf, engine: String, message: String },
    /// It does not run the model. Rows beyond the samples' lengths may have been written; their lengths are as before.
    #[error("{engine} cannot run the model: {message}")]
    Run { engine: String, message: String },
    /// It lost a cache in a failed run.
    #[error("{engine} lost cache {cache:?} in a run that failed: the session must be opened again")]
    CacheLost { engine: String, cache: String },
}

/// What a caller chooses. Each surface has its own name for it: an option, a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// Samples.
    Batch,
    /// Slots of each cache.
    Capacity,
    /// The most bytes that caches may take.
    Memory,
}

impl Setting {
    /// `batch`, `capacity` or `memory`.
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
    /// Returns the stable name of the error, such as `capacity_exceeded`. An error of the model's file or graph has the
    /// name of [`OnnxError::kind`](kvscatter_onnx::OnnxError::kind).
    ///
    /// It keeps its meaning from version to version, also where a variant gets another name.
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

    /// The setting that another choice of would help, if there is one.
    #[must_use]
    pub fn about(&self) -> Option<Setting> {
        match self {
            Self::MemoryLimit { .. } => Some(Setting::Memory),
            Self::CapacityOpen | Self::CapacityUseless => Some(Setting::Capacity),
            Self::SizeFixed { what, .. } => Some(*what),
            _ => None,
        }
    }
}

/// A number of bytes, if it is one.
fn counted(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "uncountably many".to_owned(), |bytes| bytes.to_string())
}

/// `1 or 2`.
fn ranks(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

/// `: it has 0 to 255`, where that is known.
fn known(vocabulary: Option<usize>) -> String {
    vocabulary
        .map_or_else(String::new, |vocabulary| format!(": it has 0 to {}", vocabulary.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::{Growth, PathBuf, Sample, SessionError, Setting};

    #[test]
    fn names_are_stable() {
        let (sample, element) = (Sample { place: 0, serial: 0 }, kvscatter::ElementType::Float32);
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
            (SessionError::SizesDiffer { what: "size", input: name(), got: 1, expected: 1 }, "sizes_differ"),
            (SessionError::CapacityOpen, "capacity_open"),
            (SessionError::SizeFixed { what: Setting::Batch, fixed: 1, got: 1 }, "size_fixed"),
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
                SessionError::CapacityExceeded { sample, length: 1, tokens: 1, capacity: 1 },
                "capacity_exceeded",
            ),
            (SessionError::TokenUnknown { sample, index: 1, token: 1, vocabulary: None }, "token_unknown"),
            (SessionError::TruncateBeyond { sample, to: 1, length: 1 }, "truncate_beyond"),
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
