//! The reasons why a decoder cannot be converted.

use kvscatter::ElementType;

use crate::NodeLabel;
use crate::decoder::Growth;

/// The reason why a decoder was not converted.
///
/// [`OnnxError::InNode`](crate::OnnxError::InNode) wraps it with the node that caused it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ConvertRefusal {
    // The caches.
    /// The requested number of slots is 0 or too large.
    #[error("max_seq = {max_seq}: a cache holds at least 1 slot and at most 2^31 - 1")]
    MaxSeq { max_seq: usize },
    /// The model's past has a fixed length other than `max_seq`.
    #[error("past {past:?} has a fixed length of {length}, max_seq = {max_seq} is another")]
    PastFixed { past: String, length: usize, max_seq: usize },
    /// Every step has more new tokens than the cache has slots.
    #[error("every step has {new} new tokens, which do not fit into max_seq = {max_seq}")]
    NewTokens { new: usize, max_seq: usize },
    /// The masks would have more elements than the limit.
    #[error(
        "{batch} samples with {new} new tokens and max_seq = {max_seq}: masks of more than {limit} elements are not \
         computed"
    )]
    MaskSize { batch: usize, new: usize, max_seq: usize, limit: usize },
    /// A table of positions has fewer rows than the cache has slots.
    #[error("{table:?} has a row for {rows} positions: max_seq = {max_seq} must not be more")]
    Table { table: String, rows: usize, max_seq: usize },
    /// The cache is already static.
    #[error("past {past:?} is written by TensorScatter already: the cache is static")]
    AlreadyStatic { past: String },
    /// `GroupQueryAttention` writes the cache itself.
    #[error("past {past:?} is not made static: {}", Growth::ByOperator)]
    GroupQueryAttention { past: String },
    /// The cache is written in an unknown way.
    #[error("past {past:?} is not written by Concat or Attention: {reason}")]
    Writer { past: String, reason: String },
    /// A node makes another tensor of the cache's size.
    #[error("{node} lies between past {past:?} and its present: it makes a copy of the cache")]
    Between { past: String, node: Box<NodeLabel> },
    /// Several nodes write one cache.
    #[error("past {past:?} is written more than once")]
    WrittenTwice { past: String },
    /// The cache's shape is not `[batch, heads, length, head size]`.
    #[error(
        "past {past:?} has rank {rank} and its length at axis {axis}; [batch, heads, length, head size] is wanted"
    )]
    Layout { past: String, rank: usize, axis: usize },
    /// A node besides the writer reads the old cache.
    #[error("past {past:?} is read here as well: only the node that appends to it may")]
    PastRead { past: String },
    /// The node contains a graph.
    #[error("the node holds a graph of its own; merged decoders have to be exported unmerged")]
    Subgraph,

    // The inputs.
    /// One symbol stands for two lengths.
    #[error("dimension {axis} of {name:?} is {symbol:?}, which is another length elsewhere")]
    Symbol { name: String, axis: usize, symbol: String },
    /// A dimension of an input has no known meaning.
    #[error(
        "dimension {axis} of input {name:?} is neither the batch, the past, the new tokens nor all tokens"
    )]
    InputShape { name: String, axis: usize },

    // The attention.
    /// The cache leads to a node that is not part of a known form of attention.
    #[error(
        "{value:?} holds one entry for each slot of the cache, and this is not understood as a part of attention"
    )]
    Reader { value: String },
    /// An output of the graph has one entry for each slot.
    #[error("output {name:?} holds one entry for each slot of the cache")]
    Output { name: String },
    /// No mask is applied to the scores, so empty slots would be attended to.
    #[error("the scores are not masked: slots that are still empty would be attended to")]
    Unmasked,
    /// The scores are not `[batch, .., new tokens, slots]`.
    #[error("the scores of rank {rank} are not [batch, .., new tokens, slots]")]
    ScoresShape { rank: usize },
    /// The scores have a type for which no mask is made.
    #[error("the scores are {element}: float, float16, bfloat16 and double are masked")]
    ScoresType { element: ElementType },
    /// The mask depends on more than shapes and the attention mask.
    #[error("the mask is not computed from the lengths and the attention mask alone")]
    MaskUnknown,
    /// The mask hides or shows a slot against the rule.
    #[error(
        "the mask {} slot {slot} from the token at {position}: only causal attention over all real tokens is \
         converted (no sliding window, chunk or prefix)", if *.hidden { "hides" } else { "does not hide" }
    )]
    Visibility { position: usize, slot: usize, hidden: bool },
    /// The mask is a bias (ALiBi, relative positions).
    #[error("the mask adds {added}: a bias by position is not converted, only what shows or hides a slot")]
    Bias { added: f64 },
    /// A value other than the masks depends on the length of the past.
    #[error("{value:?} depends on the length of the past in a way that is not understood")]
    LengthDependence { value: String },
    /// An input or output of `Attention` has no static form.
    #[error("{what} of Attention has no form for a static cache")]
    AttentionForm { what: &'static str },
}
