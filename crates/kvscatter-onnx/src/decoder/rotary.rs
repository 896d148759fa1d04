//! Finds the inputs from which the angles of rotary embeddings are computed or picked.

use std::collections::{BTreeMap, BTreeSet};

use super::trace::MAX_STEPS;
use crate::Graph;
use crate::graph::DEFAULT_DOMAIN;
use crate::passing::{leads_to_product, moves};

/// Returns the sines and cosines of angles that are computed from one input, with that input.
pub(super) fn computed<'m>(graph: &Graph<'m>) -> BTreeMap<&'m str, &'m str> {
    // The input from which each value is computed, or `None` if there are several.
    let mut sources: BTreeMap<&str, Option<&str>> =
        graph.fed_names().map(|input| (input, Some(input))).collect();
    let mut waves = BTreeMap::new();
    for node in graph.nodes().iter().filter(|node| node.domain() == DEFAULT_DOMAIN) {
        let operands = match node.op_type() {
            // The condition only chooses.
            "Where" => 1..3,
            "Mul" | "MatMul" | "Einsum" | "Add" | "Sub" | "Div" | "Concat" => 0..node.proto().input.len(),
            "Cos" | "Sin" | "Clip" => 0..1,
            _ if moves(node) => 0..1,
            _ => continue,
        };
        let mut of = operands.filter_map(|slot| sources.get(node.input(slot)?).copied());
        let Some(first) = of.next() else { continue };
        let source = first.filter(|_| of.all(|other| other == first));
        sources.extend(node.outputs().map(|output| (output, source)));
        if matches!(node.op_type(), "Cos" | "Sin") {
            waves.extend(node.output(0).zip(source));
        }
    }
    waves
}

/// Returns the inputs whose angles rotate vectors. `angles` contains sines and cosines, with the input from which they
/// are computed or that picks them from a table.
///
/// A rotation adds or subtracts two products. Each product has one sine or cosine, and the other factors are different
/// parts or orders of one vector. `RotaryEmbedding` takes both as inputs.
pub(super) fn rotated_by<'m>(graph: &Graph<'m>, angles: BTreeMap<&'m str, &'m str>) -> BTreeSet<&'m str> {
    let mut factors = angles;
    let mut products: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for node in graph.nodes() {
        let [left, right] = [0, 1].map(|slot| node.input(slot).unwrap_or_default());
        let [of_left, of_right] = [left, right].map(|name| factors.get(name).copied());
        match node.op_type() {
            "RotaryEmbedding" if node.domain() == DEFAULT_DOMAIN => found.extend(of_right),
            "Mul" => {
                let factor = match (of_left, of_right) {
                    (Some(index), None) => Some((index, right)),
                    (None, Some(index)) => Some((index, left)),
                    _ => None,
                };
                match factor {
                    Some((index, scale)) if graph.is_constant(scale) => {
                        factors.extend(node.output(0).map(|scaled| (scaled, index)));
                    }
                    factor => products.extend(node.output(0).zip(factor)),
                }
            }
            "Add" | "Sub" => {
                if let (Some((index, first)), Some((other, second))) =
                    (products.get(left), products.get(right))
                    && index == other
                    && first != second
                    && origin(graph, first) == origin(graph, second)
                {
                    found.insert(*index);
                }
            }
            _ if leads_to_product(node) => {
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
fn origin<'m>(graph: &Graph<'m>, value: &'m str) -> &'m str {
    let mut value = value;
    for _ in 0..MAX_STEPS {
        let Some((node, _)) = graph.producer(value) else { break };
        let Some(before) = node.input(0).filter(|_| moves(&node) || node.is("Neg")) else { break };
        value = before;
    }
    value
}
