//! Finds the inputs that pick the angles of rotary embeddings from tables of sines and cosines.

use std::collections::{BTreeMap, BTreeSet};

use super::flow::Flow;
use super::part::hands_on;
use super::trace::MAX_STEPS;
use crate::Node;
use crate::graph::DEFAULT_DOMAIN;

/// Returns the inputs whose picks rotate vectors. `picked` contains the values that are picked from tables, with the
/// input that picks them.
///
/// A rotation adds or subtracts two products. Each product has one picked factor, and the other factors are different
/// parts or orders of one vector. `RotaryEmbedding` takes both picked values as inputs.
pub(super) fn rotated_by<'m>(flow: &Flow<'m>, picked: BTreeMap<&'m str, &'m str>) -> BTreeSet<&'m str> {
    let mut factors = picked;
    let mut products: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for node in flow.nodes() {
        let [left, right] = [0, 1].map(|slot| node.input(slot).unwrap_or_default());
        let [of_left, of_right] = [left, right].map(|name| factors.get(name).copied());
        match node.op_type() {
            "RotaryEmbedding" if node.domain() == DEFAULT_DOMAIN => found.extend(of_right),
            "Mul" if !flow.is_constant(left) && !flow.is_constant(right) => {
                let product = match (of_left, of_right) {
                    (Some(index), None) => Some((index, right)),
                    (None, Some(index)) => Some((index, left)),
                    _ => None,
                };
                products.extend(node.output(0).zip(product));
            }
            "Add" | "Sub" => {
                if let (Some((index, first)), Some((other, second))) =
                    (products.get(left), products.get(right))
                    && index == other
                    && first != second
                    && origin(flow, first) == origin(flow, second)
                {
                    found.insert(*index);
                }
            }
            _ if hands_on(node) => {
                if let Some(index) = of_left {
                    factors.extend(node.proto().output.iter().map(|name| (name.as_str(), index)));
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the vector that a value is a part or another order of.
fn origin<'m>(flow: &Flow<'m>, value: &'m str) -> &'m str {
    let mut value = value;
    for _ in 0..MAX_STEPS {
        let Some((node, _)) = flow.maker(value) else { break };
        let Some(before) = node.input(0).filter(|_| rearranges(&node)) else { break };
        value = before;
    }
    value
}

fn rearranges(node: &Node<'_>) -> bool {
    node.domain() == DEFAULT_DOMAIN
        && matches!(
            node.op_type(),
            "Identity"
                | "Cast"
                | "Concat"
                | "Flatten"
                | "Gather"
                | "Neg"
                | "Reshape"
                | "Slice"
                | "Split"
                | "Squeeze"
                | "Transpose"
                | "Unsqueeze"
        )
}
