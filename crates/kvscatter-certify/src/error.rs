//! Why there is no certificate: bad input, or a runtime that cannot be had.

use std::path::PathBuf;

use kvscatter::ElementType;

/// Why a model cannot be certified at all. A claim that does not hold is no error: the certificate says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum Error {
    /// The model's file or graph.
    #[error(transparent)]
    Onnx(#[from] kvscatter_onnx::Error),
    /// Which of the two models it is about.
    #[error("{}: {cause}", path.display())]
    InModel { path: PathBuf, cause: Box<Error> },
    /// A file or folder of the model cannot be read.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },

    // Memory.
    /// No buffer holds such a tensor, or the system has no memory for it.
    #[error("no memory for a tensor of {element} of shape {shape:?}")]
    TensorTooLarge { element: ElementType, shape: Vec<usize> },
    /// The values do not fill the shape.
    #[error("shape {shape:?} takes {want} values, got {got}")]
    ValueCount { shape: Vec<usize>, want: usize, got: usize },
    /// An integer has to be fed in a type that does not hold it.
    #[error("{value} does not fit an input of {element}")]
    InputType { element: ElementType, value: i64 },

    // What the model is.
    /// There is nothing to certify: a present is longer than its past.
    #[error("cache {input:?} is not static: its style is {style}{hint}")]
    NotStatic { input: String, style: String, hint: &'static str },
    /// Something else writes them, from inputs that only it has.
    #[error("cache {input:?} is not written by TensorScatter, which is what is certified: {why}")]
    NotScattered { input: String, why: String },
    /// Equal logits would show nothing.
    #[error("{}: the original is the model itself, byte for byte: give the one it was made from", path.display())]
    OriginalIsModel { path: PathBuf },
    /// No output looks like scores of the next token.
    #[error("the model has no output of logits: of rank 3 and a floating-point type, beside its caches")]
    NoLogits,
    /// The driver does not know what to feed.
    #[error("input {input:?} is neither a cache nor tokens, positions, mask or lengths: it cannot be fed")]
    InputUnknown { input: String },
    /// The driver feeds another rank.
    #[error("input {input:?} has rank {rank}, it can be fed with rank {}", ranks(want))]
    InputRank { input: String, rank: usize, want: Vec<usize> },
    /// The model takes a fixed number of tokens.
    #[error("the model takes exactly {size} tokens a step; one, or an open number of them, can be run")]
    TokensFixed { size: usize },
    /// Canaries exist in the types that attention computes with.
    #[error("cache {input:?} is of {element}, which no canary can be painted in")]
    CacheElement { input: String, element: ElementType },
    /// A dimension that nothing tells.
    #[error("dimension {axis} of cache {input:?} is open: only batch and sequence may be")]
    SizeOpen { input: String, axis: usize },
    /// Two places say different things.
    #[error("{what} is {want}, but {input:?} has {got}")]
    SizesDiffer { what: &'static str, input: String, got: usize, want: usize },
    /// The logits are not what a decoder gives.
    #[error(
        "output {output:?} is of shape {shape:?}, for {batch} samples of {width} tokens it must be [{batch}, {width} or 1, vocabulary]"
    )]
    LogitsShape { output: String, shape: Vec<usize>, batch: usize, width: usize },
    /// They are no numbers that can be compared.
    #[error("output {output:?} is of {element}, which is not compared")]
    LogitsElement { output: String, element: ElementType },

    // What is asked for.
    /// The capacity is neither declared nor given.
    #[error("the caches have an open capacity: give it with --capacity")]
    CapacityOpen,
    /// Two options disagree.
    #[error("--prompt gives {prompts} samples, --batch {batch}")]
    PromptCount { prompts: usize, batch: usize },
    /// The scenarios need room.
    #[error(
        "a prompt of {longest} tokens (--prompt, at least 1) and {steps} steps (--steps) do not fit a cache of {capacity} slots"
    )]
    PromptTooLong { longest: usize, steps: usize, capacity: usize },
    /// Nothing can be seen in so little.
    #[error("a batch of {batch} and a capacity of {capacity} are too small: at least 1 and 2 are needed")]
    TooSmall { batch: usize, capacity: usize },
    /// The files claim more than is allowed.
    #[error("caches and logits take {}, the limit is {limit} bytes (--memory)", needed.map_or("more bytes than can be counted".to_owned(), |needed| format!("{needed} bytes")))]
    MemoryLimit { needed: Option<u64>, limit: u64 },

    // ONNX Runtime.
    /// None of the places has it.
    #[error("no ONNX Runtime found; tried {}; give its library or a wheel's folder with --ort-lib", tried.join(", "))]
    RuntimeMissing { tried: Vec<String> },
    /// The named file or folder has none.
    #[error("{}: {why}", path.display())]
    RuntimeUnusable { path: PathBuf, why: String },
    /// It lacks the operator.
    #[error("{}: ONNX Runtime {version}, at least {} is needed: the first with TensorScatter", path.display(), crate::onnxruntime::OLDEST)]
    RuntimeTooOld { path: PathBuf, version: String },
    /// A process holds one of them.
    #[error("{}: this process already runs the ONNX Runtime of {}", path.display(), loaded.display())]
    RuntimeLoaded { path: PathBuf, loaded: PathBuf },

    // Its verdicts on models.
    /// It does not take the model.
    #[error("{}: {engine} cannot load it: {says}", path.display())]
    Load { path: PathBuf, engine: String, says: String },
    /// It does not run the model.
    #[error("{engine} cannot run the model: {says}")]
    Run { engine: String, says: String },
}

/// `1 or 2`.
fn ranks(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}
