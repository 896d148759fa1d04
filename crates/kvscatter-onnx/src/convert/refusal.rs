//! Errors about decoders that cannot be converted.

use std::path::PathBuf;

use kvscatter::ElementType;

use super::cache_type::CacheType;
use crate::text::names::one_line;
use crate::{NodeLabel, OnnxError, RuntimeVersion};

/// The reason why a decoder cannot be converted.
///
/// [`OnnxError::InNode`](crate::OnnxError::InNode) wraps it with the node that prevents the conversion.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ConvertRefusal {
    // The caches.
    /// The requested number of slots is 0 or too large.
    #[error("max_seq = {max_seq}: a cache has at least 1 slot and at most 2^31 - 1")]
    MaxSeq { max_seq: usize },
    /// The model declares a past with a fixed length other than `max_seq`.
    #[error("past {past:?} has a fixed length of {length}, which differs from max_seq = {max_seq}")]
    PastFixed { past: String, length: usize, max_seq: usize },
    /// Scatters write caches of several sizes, as transformers' `StaticCache` has them for layers with windows. Their
    /// export has the length of the past as a constant.
    #[error(
        "past {past:?} has a fixed length of {length}, and {other:?} of {expected}: scatters become TensorScatter if all \
         caches have one length, as in a StaticCache of StaticLayer alone"
    )]
    PastsDiffer { past: String, length: usize, other: String, expected: usize },
    /// Every step has more new tokens than the cache has slots.
    #[error("every step has {new} new tokens, which do not fit into max_seq = {max_seq}")]
    NewTokens { new: usize, max_seq: usize },
    /// The masks would have more elements than the limit.
    #[error(
        "{batch} samples with {new} new tokens and max_seq = {max_seq}: masks of more than {limit} elements are not \
         computed"
    )]
    MaskSize { batch: usize, new: usize, max_seq: usize, limit: usize },
    /// A table that is indexed by position has fewer rows than the cache has slots.
    #[error("{table:?} has rows for {rows} positions: max_seq = {max_seq} exceeds them")]
    Table { table: String, rows: usize, max_seq: usize },
    /// The cache is already static.
    #[error("past {past:?} is written by TensorScatter already: the cache is static")]
    AlreadyStatic { past: String },
    /// The cache is written in an unknown way.
    #[error("past {past:?} cannot become static: {reason}")]
    Writer { past: String, reason: String },
    /// A `Slice` drops rows of the cache.
    #[error("past {past:?} cannot become static: {reason}. Export the model with caches that keep all rows")]
    Cut { past: String, reason: String },
    /// A node between past and present produces another tensor of the cache's size.
    #[error("{node} between past {past:?} and its present copies the cache")]
    Between { past: String, node: Box<NodeLabel> },
    /// An attention appends to the cache of another layer.
    #[error(
        "this attention appends to {present:?}, the cache of another layer: such shared caches are not converted"
    )]
    SharedCache { present: String },
    /// No output depends on the attention over the cache.
    #[error("no output depends on the attention over past {past:?}: the export lost a part of the model")]
    ResultUnused { past: String },
    /// Several nodes write one cache.
    #[error("past {past:?} is written more than once")]
    WrittenTwice { past: String },
    /// The cache's shape is not `[batch, heads, length, head size]`.
    #[error(
        "past {past:?} has rank {rank} and its length at axis {axis}: expected [batch, heads, length, head size]"
    )]
    Layout { past: String, rank: usize, axis: usize },
    /// A node other than the writer reads the past.
    #[error("past {past:?} is also read here: only the node that appends to it may read it")]
    PastRead { past: String },
    /// The node contains a graph, as `If` and `Loop` do.
    #[error("the node contains a graph: only the one If of a merged decoder is taken apart")]
    Subgraph,

    // The inputs.
    /// The model fixes a length that differs from step to step.
    #[error(
        "dimension {axis} of input {name:?} has a fixed size of {size}, but its length grows with every step: export \
         the model with an open size"
    )]
    InputFixed { name: String, axis: usize, size: usize },
    /// One symbol is used for two different lengths.
    #[error("dimension {axis} of {name:?} is {symbol:?}, which has another meaning elsewhere")]
    Symbol { name: String, axis: usize, symbol: String },
    /// A dimension of an input has no known meaning.
    #[error(
        "dimension {axis} of input {name:?} is neither the batch, the past, the new tokens nor all tokens"
    )]
    InputShape { name: String, axis: usize },

    /// The options name an ONNX Runtime that does not compute the converted model correctly.
    #[error(
        "ONNX Runtime {oldest} must run the model, but {} needs {least} or newer without kvscatter's plugin",
        if *.least == RuntimeVersion::WITH_CAP { "Attention with softcap" } else { "TensorScatter" }
    )]
    OnnxRuntime { oldest: RuntimeVersion, least: RuntimeVersion },

    // The attention.
    /// A value that is computed from the cache reaches a node that is not part of a known form of attention.
    #[error(
        "{value:?} has one entry for each slot of the cache, but {}",
        reason.unwrap_or("this node is not part of a known form of attention")
    )]
    Reader { value: String, reason: Option<&'static str> },
    /// An output of the graph has one entry for each slot.
    #[error("output {name:?} has one entry for each slot of the cache")]
    Output { name: String },
    /// The scores are not masked, so attention would read empty slots.
    #[error("the scores are not masked: attention would read empty slots")]
    Unmasked,
    /// Several attention operations share a mask and have different windows or biases.
    #[error("{value:?} is masked for several attention operations whose windows or biases differ")]
    SharedMask { value: String },
    /// The scores are not `[batch, .., new tokens, slots]`.
    #[error("the scores of rank {rank} are not [batch, .., new tokens, slots]")]
    ScoresShape { rank: usize },
    /// The converter cannot create a mask for scores of this type.
    #[error("the scores are {element}: only float, float16, bfloat16 and double are supported")]
    ScoresType { element: ElementType },
    /// The mask depends on more than shapes and the attention mask.
    #[error("the mask depends on more than the lengths and the attention mask")]
    MaskUnknown,
    /// The mask depends on an input whose values are not known, such as the types of tokens.
    #[error(
        "the mask depends on input {input:?}, and only masks of lengths, of attention_mask and of block_sequence_ids are \
         converted"
    )]
    MaskInput { input: String },
    /// The mask uses ids of blocks in another way than to show the tokens of one block to each other.
    #[error(
        "the mask is computed from input {input:?}, and {} slot {slot} from the token at {position}: besides causal \
         attention and windows, a token may only see the real tokens with its id, if the id is at least 0",
        if *.hidden { "hides" } else { "does not hide" }
    )]
    MaskBlocks { input: String, position: usize, slot: usize, hidden: bool },
    /// The mask hides a slot that the [rule](crate::convert) shows, or shows one that the rule hides.
    #[error(
        "the mask {} slot {slot} from the token at {position}{}: only causal attention is converted, over all real \
         tokens or over the last slots or real tokens of a window (no chunk or prefix)",
        if *.hidden { "hides" } else { "does not hide" },
        if *.padding > 0 { format!(" with padding in {} of the slots before it", .padding) } else { String::new() }
    )]
    Visibility { position: usize, slot: usize, hidden: bool, padding: usize },
    /// The mask adds another number than a bias that depends only on the head and on the distance of slot and token.
    #[error(
        "the mask adds {added} to the score of slot {slot} in head {head}, relative to that of the token at {position}, \
         instead of {expected}: only a bias that depends on the distance is converted (ALiBi, T5)"
    )]
    Bias { head: usize, position: usize, slot: usize, added: f64, expected: f64 },
    /// A node that adds zeros to scores in one step adds another number in another step.
    #[error("the node adds {added} to scores, and 0 in other steps")]
    NotNeutral { added: f64 },
    /// Hidden scores get a number that is not far below all other scores.
    #[error("a hidden score becomes {filler}: only numbers of at most {limit} hide a slot")]
    Filler { filler: f64, limit: f64 },
    /// A value other than a mask depends on the length of the past in an unknown way.
    #[error("{value:?} depends on the length of the past in an unknown way")]
    LengthDependence { value: String },
    /// A value other than a mask depends on the ids of blocks of cached tokens.
    #[error(
        "{value:?} depends on {input:?} of cached tokens: only masks may, because a step has the ids of its new tokens \
         only"
    )]
    CachedBlocks { input: String, value: String },
    /// A pass changes a value that it claims to keep.
    #[error("the pass {pass:?} would change {value:?}")]
    PassDiffers { pass: &'static str, value: String },
    /// The caches cannot get the type that the options ask for, because they are no wider.
    #[error(
        "past {past:?} is {element}, which is no wider than {asked}. Keep its type, or convert the export again"
    )]
    CacheNarrow { past: String, element: ElementType, asked: CacheType },
    /// The form of a cache prevents another type.
    #[error("past {past:?} cannot become {asked}: {reason}")]
    CacheForm { past: String, asked: CacheType, reason: &'static str },
    /// A node other than an `Attention` node reads a cache whose type would change.
    #[error(
        "this node reads the cache {present:?}, and only Attention may read a cache that becomes {asked}. Convert without \
         a cache type, or export attention as Attention nodes"
    )]
    CacheReader { present: String, asked: CacheType },
    /// The form of a cache prevents another layout.
    #[error("past {past:?} cannot become [batch, slots, heads * head size]: {reason}")]
    FlatForm { past: String, reason: &'static str },
    /// A node other than an `Attention` node reads a cache whose layout would change.
    #[error(
        "this node reads the cache {present:?}, and only Attention may read a cache [batch, slots, heads * head size]. \
         Convert without a layout, or export attention as Attention nodes"
    )]
    FlatReader { present: String },
    /// A pattern of names has no name for the cache.
    #[error("past {past:?} contains neither keys nor values alone, so a pattern of names does not fit it")]
    CacheUnnamed { past: String },
    /// A new name of a cache is that of another value.
    #[error("the name {name:?} of a cache is taken by another value: use another pattern")]
    NameTaken { name: String },
    /// An input or output of `Attention` is not supported with a static cache.
    #[error("{what} of Attention is not supported with a static cache")]
    AttentionForm { what: &'static str },
}

crate::cause!(ConvertRefusal, |_| "convert");

/// An error of a conversion that is no [`ConvertRefusal`].
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ConvertError {
    /// The exported decoder supports fewer tokens than the converted cache would have slots.
    #[error("the exported decoder does not support {tokens} tokens: {cause}")]
    Capacity { tokens: usize, cause: Box<OnnxError> },
    /// The caches of the decoder grow, and it cannot be converted.
    #[error("its caches cannot be made static: {cause}")]
    NotConverted { cause: Box<OnnxError> },
    /// The conversion of a model cannot be kept in this folder.
    #[error("cannot keep the converted model in {}: {cause}", one_line(&folder.to_string_lossy()))]
    NotKept { folder: PathBuf, cause: Box<OnnxError> },
    /// No folder for conversions is known.
    #[error("no folder for conversions is known, as neither KVSCATTER_CACHE, XDG_CACHE_HOME nor HOME is set")]
    NoCacheFolder,
}

crate::cause!(ConvertError, Into::into);
