//! Finds the inputs of a decoder that an encoder computes.

use std::collections::BTreeSet;

use super::part::{by_reader, is_product};
use super::roles::{Input, InputRole, is_float};
use super::trace::Path;
use crate::decoder::CachePart;
use crate::passing::{OnScores, moves, passed_on};
use crate::{Graph, Node};

/// The largest number of values that are followed from one input.
const MAX_VALUES: usize = 64;

/// What a value is in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// States, keys or values.
    Rows,
    Scores,
    Weights,
}

/// Returns the inputs from which keys or values are projected, and those that are keys or values themselves. No node
/// writes rows to them, so an encoder computes them once for each text.
pub(super) fn inputs<'m>(graph: &Graph<'m>, inputs: &[Input<'m>]) -> Vec<&'m str> {
    let is_state = |input: &&Input<'m>| {
        let rank = input.value.shape.as_ref().map_or(0, Vec::len);
        input.role == InputRole::Other && is_float(input.value.element) && rank >= 3
    };
    let mut names = inputs.iter().filter(is_state).map(|input| input.value.name).peekable();
    if names.peek().is_none() {
        return Vec::new();
    }
    let of_decoder = inputs.iter().filter(|input| input.role != InputRole::Other);
    let of_decoder = graph.computed_from(of_decoder.map(|input| input.value.name));
    names.filter(|name| is_attended(graph, name, &of_decoder)).collect()
}

/// Returns `true` if an attention reads a value, or a projection of it, as its keys or values. `of_decoder` contains
/// what is computed from the inputs with a role. If the attention consists of separate nodes, the weights of
/// keys must multiply values that are not among these, because tokens are also multiplied by other matrices.
fn is_attended<'m>(graph: &Graph<'m>, input: &'m str, of_decoder: &BTreeSet<&str>) -> bool {
    let mut pending = vec![(input, Stage::Rows)];
    let mut seen = BTreeSet::new();
    while let Some((value, stage)) = pending.pop() {
        if seen.len() >= MAX_VALUES || !seen.insert((value, stage)) {
            continue;
        }
        for (node, slot) in graph.uses(value).take(MAX_VALUES) {
            let Some(slot) = slot else { continue };
            let is_second = slot == 1 || node.is("Einsum");
            let next = match stage {
                Stage::Rows if slot == 0 && passes(graph, &node) || is_projected(graph, &node, slot) => {
                    Some(stage)
                }
                Stage::Rows => match by_reader(graph, &node, slot) {
                    Some(_) if !is_product(&node) => return true,
                    Some(CachePart::Value) if is_second => return true,
                    Some(CachePart::Key) if is_second => Some(Stage::Scores),
                    _ => None,
                },
                Stage::Scores => match OnScores::from_node(&node) {
                    Some(OnScores::Weighs) => Some(Stage::Weights),
                    Some(OnScores::Keeps | OnScores::Masks) => Some(stage),
                    Some(OnScores::Reduces) | None => None,
                },
                Stage::Weights if is_product(&node) => match node.input(usize::from(slot == 0)) {
                    Some(values) if !of_decoder.contains(values) => return true,
                    _ => None,
                },
                Stage::Weights if moves(&node) || ["Dropout", "Where"].iter().any(|op| node.is(op)) => {
                    Some(stage)
                }
                Stage::Weights => None,
            };
            pending
                .extend(next.into_iter().flat_map(|next| node.outputs().map(move |output| (output, next))));
        }
    }
    false
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
