//! The roles of a decoder's inputs.

use kvscatter::ElementType;

use super::trace::Path;
use crate::graph::DEFAULT_DOMAIN;
use crate::onnx_attention::{MASK, NONPAD_KV_SEQLEN};
use crate::passing::keeps_elements;
use crate::{Graph, Node, ValueInfo};

/// A graph input and its role.
#[derive(Clone, Debug)]
pub struct Input<'m> {
    /// The input as declared.
    pub value: ValueInfo<'m>,
    /// What the decoder uses the input for.
    pub role: InputRole,
}

/// What a decoder uses an input for.
///
/// An input has a role if an operator such as `TensorScatter`, `RotaryEmbedding` or `GroupQueryAttention` takes it in
/// this role, or if it has the name that exporters use for the role (`input_ids`, `inputs_embeds`, `position_ids`,
/// `attention_mask`, `block_sequence_ids`, `write_indices`, `nonpad_kv_seqlen`) and a fitting type and shape. If
/// neither gives a role, the graph can prove one:
///
/// - Token ids pick rows of a table with a row for each token of the vocabulary, or are the only input that picks rows.
/// - Embeddings are the only floats of rank 3 with as many rows as the logits, if no input has token ids.
/// - Positions rotate queries or keys by sines and cosines that are computed or picked from them, or are the last slot
///   that attention shows to each token.
/// - The attention mask hides exactly the slots in which it is 0, or its ones are counted as lengths.
/// - The first slots or the lengths that operators take equal the numbers of the input.
/// - Shared positions are the only input from which scatters compute their slots, and have no number for each sample.
///
/// The slots that attention shows are evaluated in a small step. Such a proof fails if a mask that is computed from the
/// input cannot be evaluated, for example if it also depends on another input without a role. Any other input is
/// [`Other`](Self::Other), because a wrong value for it would give wrong results without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputRole {
    /// A cache. The number is its index in [`Decoder::caches`](super::Decoder::caches).
    Past(usize),
    /// A state. The number is its index in [`Decoder::states`](super::Decoder::states).
    State(usize),
    /// The mask that marks the real tokens, `[batch, past + new]` or `[batch, capacity]`, or a mask that is
    /// added to the scores.
    AttentionMask,
    /// The id of the block of each token, `[batch, past + new]` or `[batch, capacity]`. Tokens with the same id see
    /// each other, such as those of an image. The id of text is -1.
    BlockIds,
    /// The position of each token in its sequence.
    PositionIds,
    /// The position of the first new token, or of each, `[]` or `[new]`, which all samples share. Scatters compute
    /// their slots from it, as in exports with transformers' `StaticCache`.
    SharedPositions,
    /// The token ids.
    TokenIds,
    /// The embeddings of the tokens, `[batch, new, hidden size]`, which some decoders take in place of token ids.
    Embeddings,
    /// `TensorScatter`'s `write_indices`, the first slot written for each sample.
    WriteIndices,
    /// `Attention`'s `nonpad_kv_seqlen`, the length of each sample after the write.
    NonpadKvSeqlen,
    /// `GroupQueryAttention`'s `seqlens_k`, the length of each sample after the write, less 1.
    SeqlensK,
    /// `GroupQueryAttention`'s `total_sequence_length`, the longest length after the write.
    TotalSequenceLength,
    /// What an encoder computes once for each text. Only the decoder of an encoder-decoder has such inputs.
    Encoder(EncoderPart),
    /// No node reads the input, so its numbers do not matter.
    Unread,
    /// None of the other roles.
    Other,
}

/// What an encoder computes for a decoder, once for each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderPart {
    /// The keys of a layer's attention to the encoder, which no step changes.
    Keys,
    /// The values of a layer's attention to the encoder, which no step changes.
    Values,
    /// The states of the encoder, from which every step computes keys and values.
    States,
    /// The mask that marks the encoder's real positions, `[batch, encoder length]`.
    Mask,
}

impl InputRole {
    /// Returns `true` for the token ids, and for the embeddings that some decoders take in their place. The axes of
    /// both begin with the batch and the new tokens.
    #[must_use]
    pub fn is_tokens(self) -> bool {
        matches!(self, Self::TokenIds | Self::Embeddings)
    }
}

/// Returns the graph inputs to which an operator gives a role, node by node.
pub(super) fn uses<'f, 'm>(
    graph: &'f Graph<'m>,
) -> impl Iterator<Item = (&'m str, InputRole, Node<'m>)> + use<'f, 'm> {
    graph.nodes().iter().flat_map(move |node| {
        slots(node)
            .iter()
            .filter_map(move |&(slot, role)| Some((used(graph, node.input(slot)?, role)?, role, *node)))
    })
}

/// Returns the inputs of an operator that have a role.
fn slots(node: &Node<'_>) -> &'static [(usize, InputRole)] {
    match (node.domain(), node.op_type()) {
        (DEFAULT_DOMAIN, "TensorScatter") => &[(2, InputRole::WriteIndices)],
        (DEFAULT_DOMAIN, "Attention") => {
            &[(MASK, InputRole::AttentionMask), (NONPAD_KV_SEQLEN, InputRole::NonpadKvSeqlen)]
        }
        (DEFAULT_DOMAIN, "RotaryEmbedding") => &[(3, InputRole::PositionIds)],
        ("com.microsoft", "RotaryEmbedding" | "MRotaryEmbedding") => &[(1, InputRole::PositionIds)],
        ("com.microsoft", "GroupQueryAttention") => {
            &[(5, InputRole::SeqlensK), (6, InputRole::TotalSequenceLength), (9, InputRole::PositionIds)]
        }
        ("com.microsoft", "MultiHeadAttention") => {
            &[(4, InputRole::AttentionMask), (5, InputRole::AttentionMask)]
        }
        ("com.microsoft", "EmbedLayerNormalization") => {
            &[(0, InputRole::TokenIds), (8, InputRole::PositionIds)]
        }
        _ => &[],
    }
}

/// Returns the graph input that a value equals, regardless of type and shape.
pub(super) fn same<'m>(graph: &Graph<'m>, value: &'m str) -> Option<&'m str> {
    through(graph, value, keeps_elements)
}

/// Returns the graph input that a node uses in a role. Attention that reads a ring limits the lengths to its capacity.
fn used<'m>(graph: &Graph<'m>, value: &'m str, role: InputRole) -> Option<&'m str> {
    match role {
        InputRole::NonpadKvSeqlen => through(graph, value, |node| keeps_elements(node) || node.is("Min")),
        _ => same(graph, value),
    }
}

pub(super) fn through<'m>(
    graph: &Graph<'m>,
    value: &'m str,
    allowed: fn(&Node<'_>) -> bool,
) -> Option<&'m str> {
    let path = Path::back(graph, value);
    (graph.is_input(path.source) && path.steps.iter().all(allowed)).then_some(path.source)
}

/// Returns `true` for the types of logits and embeddings.
pub(crate) fn is_float(element: ElementType) -> bool {
    matches!(
        element,
        ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16 | ElementType::Float64
    )
}
