//! The roles of a decoder's inputs.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::cache::Cache;
use super::flow::Flow;
use super::state::State;
use super::trace::{MAX_STEPS, Path};
use crate::graph::DEFAULT_DOMAIN;
use crate::{Dimension, Node, ValueInfo};

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
/// The role is determined by the operators that the input reaches. Embeddings are recognised by type and shape, if no
/// input has token ids. If several inputs reach the same
/// operators, the names that exporters use decide between them (`input_ids`, `inputs_embeds`, `position_ids`,
/// `attention_mask`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputRole {
    /// A cache. The number is its index in [`Decoder::caches`](super::Decoder::caches).
    Past(usize),
    /// A state. The number is its index in [`Decoder::states`](super::Decoder::states).
    State(usize),
    /// The mask that marks the real tokens, `[batch, past + new]` or `[batch, capacity]`, or a mask that is
    /// added to the scores.
    AttentionMask,
    /// The position of each token in its sequence.
    PositionIds,
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
    /// None of the other roles.
    Other,
}

impl InputRole {
    /// Returns `true` for the token ids, and for the embeddings that some decoders take in their place. The axes of
    /// both begin with the batch and the new tokens.
    #[must_use]
    pub fn is_tokens(self) -> bool {
        matches!(self, Self::TokenIds | Self::Embeddings)
    }
}

/// How a graph uses an input.
#[derive(Clone, Debug, Default)]
struct Evidence {
    /// The role that an operator gives to the input.
    role: Option<InputRole>,
    /// The number of rows of each table from which the input picks rows.
    tables: Vec<usize>,
    /// Whether the input picks single elements of a table.
    picks_elements: bool,
    /// Whether a sine or cosine is computed from the input.
    is_angle: bool,
}

/// Assigns a role to every input. Each role except [`InputRole::Past`], [`InputRole::State`] and
/// [`InputRole::Other`] is given to at most one input.
pub(super) fn assign<'m>(
    flow: &Flow<'m>,
    inputs: Vec<ValueInfo<'m>>,
    caches: &[Cache<'m>],
    states: &[State<'m>],
    logits: Option<&ValueInfo<'m>>,
) -> Vec<Input<'m>> {
    let caches_by_name = caches.iter().enumerate().map(|(at, cache)| (cache.past, InputRole::Past(at)));
    let states_by_name = states.iter().enumerate().map(|(at, state)| (state.past, InputRole::State(at)));
    let pasts: BTreeMap<_, _> = caches_by_name.chain(states_by_name).collect();
    let evidence = evidence(flow);
    let none = Evidence::default();
    let mut inputs: Vec<_> = inputs
        .into_iter()
        .map(|value| {
            let seen = evidence.get(value.name).unwrap_or(&none);
            let role = pasts.get(value.name).copied().or(seen.role).unwrap_or(InputRole::Other);
            (Input { value, role }, seen)
        })
        .collect();

    let vocabulary = logits.and_then(|logits| known(logits.shape.as_ref()?.last()));
    let picks = |rows: Option<usize>| {
        move |seen: &Evidence| rows.map_or(!seen.tables.is_empty(), |rows| seen.tables.contains(&rows))
    };
    let others = |seen: &Evidence| seen.is_angle || seen.picks_elements || !seen.tables.is_empty();
    let indices = |input: &Input<'_>| is_integer(input.value.element);
    let largest = |seen: &Evidence| seen.tables.iter().copied().max();
    give(&mut inputs, InputRole::TokenIds, "input_ids", largest, |input, seen| {
        indices(input) && !seen.is_angle && picks(vocabulary)(seen)
    });
    let tokens = logits.and_then(|logits| Length::of(logits.shape.as_ref()?.get(1)));
    let takes_ids = inputs.iter().any(|(input, _)| input.role == InputRole::TokenIds);
    give(
        &mut inputs,
        InputRole::Embeddings,
        "inputs_embeds",
        |_| None,
        |input, _| {
            let shape = input.value.shape.as_deref().unwrap_or_default();
            // The states of an encoder have another length.
            let counts_new = tokens.is_some() && Length::of(shape.get(1)) == tokens;
            let is_named = input.value.name == "inputs_embeds";
            !takes_ids && shape.len() == 3 && is_float(input.value.element) && (counts_new || is_named)
        },
    );
    give(&mut inputs, InputRole::PositionIds, "position_ids", largest, |input, seen| {
        indices(input) && others(seen)
    });
    // Nothing reads the positions of some exports, and others compute their angles in unknown ways.
    give(
        &mut inputs,
        InputRole::PositionIds,
        "position_ids",
        |_| None,
        |input, _| {
            let has_rank_2 = input.value.shape.as_ref().is_some_and(|shape| shape.len() == 2);
            indices(input) && has_rank_2 && input.value.name == "position_ids"
        },
    );
    let lengths: BTreeSet<_> = caches.iter().filter_map(Length::of_keys).collect();
    let fits = |input: &Input<'_>| {
        let shape = input.value.shape.as_deref().unwrap_or_default();
        Length::of(shape.last()).is_some_and(|length| lengths.contains(&length))
    };
    let is_mask = |input: &Input<'_>, seen: &Evidence| {
        input.value.shape.as_ref().is_some_and(|shape| shape.len() == 2) && !others(seen)
    };
    give(
        &mut inputs,
        InputRole::AttentionMask,
        "attention_mask",
        |_| None,
        |input, seen| is_mask(input, seen) && fits(input),
    );
    give(&mut inputs, InputRole::AttentionMask, "attention_mask", |_| None, is_mask);
    inputs.into_iter().map(|(input, _)| input).collect()
}

/// Gives a role that no input has yet to one of the candidates.
///
/// A single candidate gets the role. Of several candidates, the one with the name that exporters use gets it,
/// or else the one that `rank` puts before all others.
fn give(
    inputs: &mut [(Input<'_>, &Evidence)],
    role: InputRole,
    name: &str,
    rank: impl Fn(&Evidence) -> Option<usize>,
    is_candidate: impl Fn(&Input<'_>, &Evidence) -> bool,
) {
    if inputs.iter().any(|(input, _)| input.role == role) {
        return;
    }
    let candidates = || {
        inputs
            .iter()
            .enumerate()
            .filter(|(_, (input, seen))| input.role == InputRole::Other && is_candidate(input, seen))
    };
    let named = candidates().find(|(_, (input, _))| input.value.name == name);
    let only = candidates().next().filter(|_| candidates().count() == 1);
    let first = || {
        let best = candidates().filter_map(|(_, (_, seen))| rank(seen)).max()?;
        let mut best = candidates().filter(|(_, (_, seen))| rank(seen).as_ref() == Some(&best));
        best.next().filter(|_| best.next().is_none())
    };
    let chosen = only.or(named).or_else(first).map(|(at, _)| at);
    if let Some((input, _)) = chosen.and_then(|at| inputs.get_mut(at)) {
        input.role = role;
    }
}

/// Returns how the nodes of a graph use its inputs.
fn evidence<'m>(flow: &Flow<'m>) -> BTreeMap<&'m str, Evidence> {
    let mut evidence: BTreeMap<&'m str, Evidence> = BTreeMap::new();
    for (input, role, _) in uses(flow) {
        evidence.entry(input).or_default().role.get_or_insert(role);
    }
    for node in flow.nodes() {
        if let Some((rows, picked)) = table(flow, node) {
            evidence.entry(picked).or_default().tables.push(rows);
        }
        if let Some(picked) = picked_by_element(flow, node) {
            evidence.entry(picked).or_default().picks_elements = true;
        }
    }
    for input in become_angles(flow) {
        evidence.entry(input).or_default().is_angle = true;
    }
    evidence
}

/// Returns the graph inputs to which an operator gives a role, node by node.
pub(super) fn uses<'f, 'm>(
    flow: &'f Flow<'m>,
) -> impl Iterator<Item = (&'m str, InputRole, Node<'m>)> + use<'f, 'm> {
    flow.nodes().iter().flat_map(move |node| {
        slots(node)
            .iter()
            .filter_map(move |&(slot, role)| Some((used(flow, node.input(slot)?, role)?, role, *node)))
    })
}

/// Returns the inputs of an operator that have a role.
fn slots(node: &Node<'_>) -> &'static [(usize, InputRole)] {
    match (node.domain(), node.op_type()) {
        (DEFAULT_DOMAIN, "TensorScatter") => &[(2, InputRole::WriteIndices)],
        (DEFAULT_DOMAIN, "Attention") => &[(3, InputRole::AttentionMask), (6, InputRole::NonpadKvSeqlen)],
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
pub(super) fn same<'m>(flow: &Flow<'m>, value: &'m str) -> Option<&'m str> {
    through(flow, value, keeps_elements)
}

/// Returns the graph input that a node uses in a role. Attention that reads a ring limits the lengths to its capacity.
fn used<'m>(flow: &Flow<'m>, value: &'m str, role: InputRole) -> Option<&'m str> {
    match role {
        InputRole::NonpadKvSeqlen => through(flow, value, |node| keeps_elements(node) || node.is("Min")),
        _ => same(flow, value),
    }
}

fn keeps_elements(node: &Node<'_>) -> bool {
    matches!(node.op_type(), "Identity" | "Cast" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten")
}

fn through<'m>(flow: &Flow<'m>, value: &'m str, allowed: fn(&Node<'_>) -> bool) -> Option<&'m str> {
    let path = Path::back(flow, value);
    (flow.is_input(path.source) && path.steps.iter().all(allowed)).then_some(path.source)
}

/// Returns the number of rows of a table and the graph input that picks rows from it.
fn table<'m>(flow: &Flow<'m>, node: &Node<'m>) -> Option<(usize, &'m str)> {
    let picks_rows = (node.is("Gather") && node.attribute("axis").and_then(|axis| axis.i).unwrap_or(0) == 0)
        || (node.domain(), node.op_type()) == ("com.microsoft", "GatherBlockQuantized");
    if !picks_rows {
        return None;
    }
    // OPT adds 2 to its positions before it uses them as indices.
    let is_index = |node: &Node<'_>| !matches!(node.op_type(), "Slice" | "Pad" | "Transpose");
    let picked = through(flow, node.input(1)?, is_index)?;
    // The table of a quantised embedding may be reshaped weights of the logits. Its scales have the same rows.
    let is_quantised = node.op_type() == "GatherBlockQuantized";
    let scales = if is_quantised { node.input(2) } else { None };
    let rows = |table: &'m str| {
        let path = Path::back(flow, table);
        let dims = flow.constant_dims(path.source).filter(|dims| dims.len() == 2)?;
        usize::try_from(*dims.get(path.axis_at_source(0)?)?).ok()
    };
    Some((rows(node.input(0)?).or_else(|| rows(scales?))?, picked))
}

/// Returns the graph input that picks single elements of a table. GPT-J's positions pick elements of its
/// table of sines.
fn picked_by_element<'m>(flow: &Flow<'m>, node: &Node<'m>) -> Option<&'m str> {
    if !node.is("GatherElements") {
        return None;
    }
    let mut index = node.input(1)?;
    for _ in 0..MAX_STEPS {
        if flow.is_input(index) {
            return Some(index);
        }
        let (maker, _) = flow.maker(index)?;
        let is_handed_on = matches!(
            maker.op_type(),
            "Identity" | "Cast" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Expand" | "Tile"
        );
        index = maker.input(0).filter(|_| is_handed_on)?;
    }
    None
}

/// Returns the graph inputs from which a sine or cosine is computed. These are positions, in models that
/// compute their rotary embeddings.
///
/// Nodes are visited backwards, so each node is visited once, after all nodes that read its outputs.
fn become_angles<'m>(flow: &Flow<'m>) -> Vec<&'m str> {
    let mut angles: BTreeSet<&str> = BTreeSet::new();
    for node in flow.nodes().iter().rev() {
        let is_one = match node.op_type() {
            "Cos" | "Sin" => true,
            "Identity" | "Cast" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Expand"
            | "Transpose" | "Mul" | "MatMul" | "Einsum" | "Add" | "Sub" | "Div" | "Clip" | "Concat"
            | "Slice" | "Where" => node.output(0).is_some_and(|output| angles.contains(output)),
            _ => false,
        };
        if is_one {
            angles.extend(node.proto().input.iter().map(String::as_str));
        }
    }
    flow.inputs().filter(|input| angles.contains(input)).collect()
}

/// A declared size that two values may have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Length<'m> {
    Known(usize),
    Symbolic(&'m str),
}

impl<'m> Length<'m> {
    fn of(dim: Option<&Dimension<'m>>) -> Option<Self> {
        match *dim? {
            Dimension::Known(size) => Some(Self::Known(size)),
            Dimension::Symbolic(symbol) => Some(Self::Symbolic(symbol)),
            Dimension::Unknown => None,
        }
    }

    /// Returns the number of keys that attention sees.
    fn of_keys(cache: &Cache<'m>) -> Option<Self> {
        Self::of(cache.present_info.shape.as_ref()?.get(cache.axis))
    }
}

fn known(dim: Option<&Dimension<'_>>) -> Option<usize> {
    match dim {
        Some(&Dimension::Known(size)) => Some(size),
        _ => None,
    }
}

/// Returns `true` for the types of logits and embeddings.
pub(super) fn is_float(element: ElementType) -> bool {
    matches!(
        element,
        ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16 | ElementType::Float64
    )
}

fn is_integer(element: ElementType) -> bool {
    matches!(element, ElementType::Int64 | ElementType::Int32)
}
