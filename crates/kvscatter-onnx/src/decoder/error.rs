//! Errors about the caches of a decoder.

/// An error about the caches of a decoder.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum DecoderError {
    /// No output returns an input with rows written into it, so the model has no cache.
    #[error("no cache: no output returns an input with rows written to it")]
    CacheNone,
    /// An input is written like a cache, but no output returns the result.
    #[error("{past:?} is not fed back: no output returns the result of this node")]
    CacheNotFedBack { past: String },
    /// An output is written like a cache, but no input is its past.
    #[error("{present:?} is written like a cache, but no input is its past")]
    CacheNotFed { present: String },
    /// The rank of a cache is not known.
    #[error("cache {name:?} declares no shape")]
    CacheShapeMissing { name: String },
    /// The writer of a cache does not support the cache's rank.
    #[error("cache {name:?} has {rank} dimensions, must have {expected}")]
    CacheRank { name: String, rank: usize, expected: &'static str },
    /// Rows are appended to the past, but the present is declared to be no longer than the past.
    #[error("{past:?} and {present:?} both have dimension {axis} = {size}, although rows are appended")]
    CacheDoesNotGrow { past: String, present: String, axis: usize, size: String },
    /// Two dimensions that must be equal have different declared sizes.
    #[error(
        "{first:?} has dimension {first_axis} = {first_size}, {second:?} has dimension {second_axis} = \
         {second_size}: they must be equal"
    )]
    DimsDiffer {
        first: String,
        first_axis: usize,
        first_size: usize,
        second: String,
        second_axis: usize,
        second_size: usize,
    },
    /// Both branches of a merged decoder are decoders with a past.
    #[error("both branches for input {condition:?} are decoders with a past: only one may be")]
    MergedTwice { condition: String },
    /// The layers of an input with all layers are not read and written in a known way.
    #[error("{input:?} contains all layers: {reason}")]
    Stacked { input: String, reason: &'static str },
}

crate::cause!(DecoderError, Into::into);
