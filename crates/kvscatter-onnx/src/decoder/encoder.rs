//! Finds the inputs of a decoder that an encoder computes.

use std::collections::BTreeSet;

use super::follow::follow;
use super::part::{by_reader, is_product};
use super::roles::{EncoderPart, Input, InputRole, is_float};
use super::trace::Path;
use crate::decoder::CachePart;
use crate::passing::{OnScores, moves, passed_on};
use crate::{Dimension, Graph, Node, ValueInfo};

/// The stages of attention in which a value can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// States, keys or values.
    Rows,
    Scores,
    Weights,
}

/// Gives a role to the inputs from which keys or values are projected, to those that are keys or values themselves,
/// and, by its name, to the mask of the encoder. No node writes rows to them, so an encoder computes them once for each
/// text.
pub(super) fn assign<'m>(graph: &Graph<'m>, inputs: &mut [Input<'m>]) {
    let is_state = |input: &Input<'m>| {
        input.role == InputRole::Other
            && is_float(input.value.element)
            && input.value.rank().is_some_and(|rank| rank >= 3)
    };
    if !inputs.iter().any(is_state) {
        return;
    }
    let of_decoder = inputs.iter().filter(|input| input.role != InputRole::Other);
    let of_decoder = graph.computed_from(of_decoder.map(|input| input.value.name));
    for input in inputs.iter_mut().filter(|input| is_state(input)) {
        if let Some(part) = attended(graph, input.value.name, &of_decoder) {
            input.role = InputRole::Encoder(part);
        }
    }
    let is_of_encoder = |input: &Input<'m>| matches!(input.role, InputRole::Encoder(_));
    if !inputs.iter().any(is_of_encoder) {
        return;
    }
    // Another mask may mark padding with 1.
    let is_mask = |input: &Input<'m>| {
        let value = &input.value;
        value.name == MASK && value.rank() == Some(2) && !is_float(value.element)
    };
    let lengths = inputs.iter().filter(|input| is_of_encoder(input) || is_mask(input));
    let lengths: BTreeSet<_> = lengths.filter_map(|input| length(&input.value)).collect();
    // Some decoders read only the shape of the states, beside keys and values.
    let has_length = |value: &ValueInfo<'m>| length(value).is_some_and(|length| lengths.contains(length));
    for input in inputs.iter_mut().filter(|input| is_state(input) && has_length(&input.value)) {
        input.role = InputRole::Encoder(EncoderPart::States);
    }
    // A mask of which only the shape is read hides nothing.
    let is_read = |input: &Input<'m>| graph.uses(input.value.name).any(|(node, _)| !node.reads_shape());
    let mut masks = inputs.iter_mut().filter(|input| input.role == InputRole::Other && is_mask(input));
    if let Some(mask) = masks.next().filter(|mask| is_read(mask)) {
        mask.role = InputRole::Encoder(EncoderPart::Mask);
    }
}

/// The name that exporters give to the mask of the encoder, which is 1 for real positions.
const MASK: &str = "encoder_attention_mask";

/// Returns the symbol of the encoder's length: the last symbol of a shape that is not the first dimension.
fn length<'m>(value: &ValueInfo<'m>) -> Option<&'m str> {
    value.shape.as_ref()?.iter().skip(1).rev().find_map(|dim| match *dim {
        Dimension::Symbolic(symbol) => Some(symbol),
        _ => None,
    })
}

/// Returns what an input is to the attention that reads it, or a projection of it, as keys or values. Returns `None` if
/// no attention does. `of_decoder` contains what is computed from the inputs with a role. If the attention consists of
/// separate nodes, the weights of keys must multiply values that are not among these, because tokens are also
/// multiplied by other matrices.
fn attended<'m>(graph: &Graph<'m>, input: &'m str, of_decoder: &BTreeSet<&str>) -> Option<EncoderPart> {
    let mut found: BTreeSet<(CachePart, bool)> = BTreeSet::new();
    follow(graph, input, (Stage::Rows, false), |node, slot, (stage, projected)| {
        let slot = slot?;
        let is_second = slot == 1 || node.is("Einsum");
        match stage {
            Stage::Rows if slot == 0 && passes(graph, node) => Some((stage, projected)),
            Stage::Rows if is_projected(graph, node, slot) => Some((stage, true)),
            Stage::Rows => match by_reader(graph, node, slot)? {
                CachePart::Key if is_product(node) => is_second.then_some((Stage::Scores, projected)),
                part => {
                    if is_second || !is_product(node) {
                        found.insert((part, projected));
                    }
                    None
                }
            },
            Stage::Scores => match OnScores::from_node(node)? {
                OnScores::Weighs => Some((Stage::Weights, projected)),
                OnScores::Keeps | OnScores::Masks => Some((stage, projected)),
                OnScores::Reduces => None,
            },
            Stage::Weights if is_product(node) => {
                let values = node.input(usize::from(slot == 0))?;
                if !of_decoder.contains(values) {
                    found.insert((CachePart::Key, projected));
                }
                None
            }
            Stage::Weights => (moves(node) || node.is("Where")).then_some((stage, projected)),
        }
    });
    let is_only = |part| !found.is_empty() && found.iter().all(|of| *of == (part, false));
    match found.is_empty() {
        true => None,
        false if is_only(CachePart::Key) => Some(EncoderPart::Keys),
        false if is_only(CachePart::Value) => Some(EncoderPart::Values),
        false => Some(EncoderPart::States),
    }
}

/// Returns `true` if a node passes on elements of its first input.
fn passes(graph: &Graph<'_>, node: &Node<'_>) -> bool {
    passed_on(graph, node).is_some() || (moves(node) && !node.is("Concat"))
}

/// Returns `true` if a node multiplies its input at `slot` by weights, or adds a constant to it.
fn is_projected(graph: &Graph<'_>, node: &Node<'_>, slot: usize) -> bool {
    let is_weights =
        |slot| node.input(slot).is_some_and(|it| graph.is_constant(Path::back(graph, it).source));
    match node.op_type() {
        "MatMul" | "Add" => slot <= 1 && is_weights(1_usize.saturating_sub(slot)),
        "Gemm" | "MatMulNBits" => slot == 0 && is_weights(1),
        _ => false,
    }
}
