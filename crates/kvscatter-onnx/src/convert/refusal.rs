//! Why a decoder cannot be converted.

use kvscatter::ElementType;

use crate::NodeLabel;
use crate::decoder::Growth;

/// Why a decoder was left as it is. [`OnnxError::InNode`](crate::OnnxError::InNode) wraps it with
/// the node it is about.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ConvertRefusal {
    // The caches.
    /// A cache of no slots.
    #[error("max_seq = {max_seq}: a cache holds at least 1 slot and at most 2^31 - 1")]
    MaxSeq { max_seq: usize },
    /// The model's past already has a length.
    #[error("past {past:?} has a fixed length of {length}, max_seq = {max_seq} is another")]
    PastFixed { past: String, length: usize, max_seq: usize },
    /// More new tokens in every step than there are slots.
    #[error("every step has {new} new tokens, which do not fit into max_seq = {max_seq}")]
    NewTokens { new: usize, max_seq: usize },
    /// Masks of another size than is computed.
    #[error(
        "{batch} samples with {new} new tokens and max_seq = {max_seq}: masks of more than {limit} elements are not \
         computed"
    )]
    MaskSize { batch: usize, new: usize, max_seq: usize, limit: usize },
    /// Positions end before the cache does.
    #[error("{table:?} has a row for {rows} positions: max_seq = {max_seq} must not be more")]
    Table { table: String, rows: usize, max_seq: usize },
    /// Nothing to do.
    #[error("past {past:?} is written by TensorScatter already: the cache is static")]
    AlreadyStatic { past: String },
    /// The operator writes the cache itself.
    #[error("past {past:?} is not made static: {}", Growth::ByOperator)]
    GroupQueryAttention { past: String },
    /// A cache that is written in a way that is not known.
    #[error("past {past:?} is not written by Concat or Attention: {reason}")]
    Writer { past: String, reason: String },
    /// A node that makes another cache-sized tensor.
    #[error("{node} lies between past {past:?} and its present: it makes a copy of the cache")]
    Between { past: String, node: Box<NodeLabel> },
    /// One cache, several writers.
    #[error("past {past:?} is written more than once")]
    WrittenTwice { past: String },
    /// Not `[batch, heads, length, head size]`.
    #[error(
        "past {past:?} has rank {rank} and its length at axis {axis}; [batch, heads, length, head size] is wanted"
    )]
    Layout { past: String, rank: usize, axis: usize },
    /// The old cache is read beside the new one.
    #[error("past {past:?} is read here as well: only the node that appends to it may")]
    PastRead { past: String },
    /// A graph inside a node.
    #[error("the node holds a graph of its own; merged decoders have to be exported unmerged")]
    Subgraph,

    // The inputs.
    /// A symbol stands for two lengths.
    #[error("dimension {axis} of {name:?} is {symbol:?}, which is another length elsewhere")]
    Symbol { name: String, axis: usize, symbol: String },
    /// A dimension of an input that nothing explains.
    #[error(
        "dimension {axis} of input {name:?} is neither the batch, the past, the new tokens nor all tokens"
    )]
    InputShape { name: String, axis: usize },

    // The attention.
    /// The cache leads to a node that is not part of an attention that is known.
    #[error(
        "{value:?} holds one entry for each slot of the cache, and this is not understood as a part of attention"
    )]
    Reader { value: String },
    /// One entry for each slot leaves the graph.
    #[error("output {name:?} holds one entry for each slot of the cache")]
    Output { name: String },
    /// Scores that nothing masks: empty slots would be attended to.
    #[error("the scores are not masked: slots that are still empty would be attended to")]
    Unmasked,
    /// Scores of another form.
    #[error("the scores of rank {rank} are not [batch, .., new tokens, slots]")]
    ScoresShape { rank: usize },
    /// Scores of a type that no mask is made for.
    #[error("the scores are {element}: float, float16, bfloat16 and double are masked")]
    ScoresType { element: ElementType },
    /// The mask is not computed from shapes and the attention mask alone.
    #[error("the mask is not computed from the lengths and the attention mask alone")]
    MaskUnknown,
    /// The mask hides or shows something else than the rule.
    #[error(
        "the mask {} slot {slot} from the token at {position}: only causal attention over all real tokens is \
         converted (no sliding window, chunk or prefix)", if *.hidden { "hides" } else { "does not hide" }
    )]
    Visibility { position: usize, slot: usize, hidden: bool },
    /// The mask is a bias (ALiBi, relative positions).
    #[error("the mask adds {added}: a bias by position is not converted, only what shows or hides a slot")]
    Bias { added: f64 },
    /// A value besides the masks depends on how long the past is.
    #[error("{value:?} depends on the length of the past in a way that is not understood")]
    LengthDependence { value: String },
    /// An input or output of Attention that has no static form.
    #[error("{what} of Attention has no form for a static cache")]
    AttentionForm { what: &'static str },
}
