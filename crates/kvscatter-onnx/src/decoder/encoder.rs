//! Finds the inputs of a decoder that an encoder computes.

use std::collections::BTreeSet;

use super::flow::Flow;
use super::part::is_product;
use super::roles::{Input, InputRole, is_float};
use super::trace::{Path, handed_on};
use crate::Node;

/// The largest number of values that are followed from one input.
const MAX_VALUES: usize = 64;

/// Returns the inputs from which keys or values are projected, and those that are keys or values themselves. No node
/// writes rows to them, so an encoder computes them once for each text.
pub(super) fn inputs<'m>(flow: &Flow<'m>, inputs: &[Input<'m>]) -> Vec<&'m str> {
    let is_state = |input: &&Input<'m>| {
        let rank = input.value.shape.as_ref().map_or(0, Vec::len);
        input.role == InputRole::Other && is_float(input.value.element) && rank >= 3
    };
    let names = inputs.iter().filter(is_state).map(|input| input.value.name);
    names.filter(|name| are_keys(flow, name)).collect()
}

/// Returns `true` if an attention reads a value, or a projection of it, as its keys or values.
fn are_keys<'m>(flow: &Flow<'m>, input: &'m str) -> bool {
    let mut pending = vec![input];
    let mut seen = BTreeSet::new();
    while let Some(value) = pending.pop() {
        if seen.len() >= MAX_VALUES || !seen.insert(value) {
            continue;
        }
        for (node, slot) in flow.readers(value).take(MAX_VALUES) {
            let Some(slot) = slot else { continue };
            let is_passed = (slot == 0 && passes(flow, &node)) || is_projected(flow, &node, slot);
            match is_passed {
                true => pending.extend(node.outputs()),
                false
                    if is_product(&node)
                        || node.op_type().ends_with("Attention") && matches!(slot, 1 | 2) =>
                {
                    return true;
                }
                false => {}
            }
        }
    }
    false
}

/// Returns `true` if a node passes on elements of its first input.
fn passes(flow: &Flow<'_>, node: &Node<'_>) -> bool {
    handed_on(flow, node).is_some() || ["Gather", "Split", "Expand", "Tile"].into_iter().any(|op| node.is(op))
}

/// Returns `true` if a node multiplies its input at `slot` by weights, or adds a constant to it.
fn is_projected(flow: &Flow<'_>, node: &Node<'_>, slot: usize) -> bool {
    let is_weights = |slot| node.input(slot).is_some_and(|it| flow.is_constant(Path::back(flow, it).source));
    match node.op_type() {
        "MatMul" | "Add" => slot <= 1 && is_weights(1_usize.saturating_sub(slot)),
        "Gemm" | "MatMulNBits" => slot == 0 && is_weights(1),
        _ => false,
    }
}
