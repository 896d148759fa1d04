//! Finds the inputs of a decoder that an encoder computes.

use std::collections::BTreeSet;

use super::follow::follow;
use super::part::{by_reader, is_product};
use super::roles::{Input, InputRole, is_float};
use super::trace::Path;
use crate::decoder::CachePart;
use crate::passing::{OnScores, moves, passed_on};
use crate::{Graph, Node};

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
    let mut is_attended = false;
    follow(graph, input, Stage::Rows, |node, slot, stage| {
        let slot = slot?;
        let is_second = slot == 1 || node.is("Einsum");
        match stage {
            Stage::Rows if slot == 0 && passes(graph, node) || is_projected(graph, node, slot) => Some(stage),
            Stage::Rows => match by_reader(graph, node, slot)? {
                CachePart::Key if is_product(node) => is_second.then_some(Stage::Scores),
                _ => {
                    is_attended |= is_second || !is_product(node);
                    None
                }
            },
            Stage::Scores => match OnScores::from_node(node)? {
                OnScores::Weighs => Some(Stage::Weights),
                OnScores::Keeps | OnScores::Masks => Some(stage),
                OnScores::Reduces => None,
            },
            Stage::Weights if is_product(node) => {
                let values = node.input(usize::from(slot == 0))?;
                is_attended |= !of_decoder.contains(values);
                None
            }
            Stage::Weights => (moves(node) || node.is("Where")).then_some(stage),
        }
    });
    is_attended
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
