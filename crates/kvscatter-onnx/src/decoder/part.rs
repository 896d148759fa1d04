//! Determines whether a cache contains keys or values, from the nodes that read it.

use std::collections::BTreeSet;

use super::cache::{Cache, CachePart, WriterStyle};
use crate::passing::{self, leads_to_product};
use crate::{Graph, Node};

/// The maximum number of readers that are examined. Caches in real exports reach their attention within a
/// dozen nodes.
const MAX_VALUES: usize = 64;

/// Determines the contents of a cache by following it from its writer to the product that uses it.
///
/// A cache that is multiplied by the output of a `Softmax` contains values. A cache that is multiplied by
/// another value contains keys.
pub(super) fn find(graph: &Graph<'_>, cache: &Cache<'_>) -> CachePart {
    if let Some(part) = cache.writer.as_ref().and_then(|writer| by_writer(graph, cache, writer)) {
        return part;
    }
    let mut pending = vec![cache.written];
    let mut seen = BTreeSet::new();
    let (mut found, mut is_split) = (None, false);
    while let Some(value) = pending.pop() {
        if seen.len() >= MAX_VALUES || !seen.insert(value) {
            continue;
        }
        for (node, slot) in graph.uses(value).take(MAX_VALUES) {
            let Some(slot) = slot else { continue };
            if let Some(part) = by_reader(graph, &node, slot) {
                // Only a cache that is split can contain both.
                if !is_split {
                    return part;
                }
                if *found.get_or_insert(part) != part {
                    return CachePart::Both;
                }
            }
            if leads_to_product(&node) {
                is_split |= node.is("Split");
                let parts = if node.is("Split") { node.proto().output.len() } else { 1 };
                pending.extend((0..parts).filter_map(|slot| node.output(slot)));
            }
        }
    }
    found.unwrap_or(CachePart::Unknown)
}

/// Returns the contents of a cache that an attention operator writes, from the index of the output.
fn by_writer(graph: &Graph<'_>, cache: &Cache<'_>, writer: &Node<'_>) -> Option<CachePart> {
    let (_, slot) = graph.producer(cache.written)?;
    let of_attention = match (&cache.style, writer.domain(), writer.op_type()) {
        (WriterStyle::AttentionPast | WriterStyle::GroupQueryAttention, ..) => true,
        (_, "com.microsoft", "Attention" | "QAttention" | "DecoderMaskedSelfAttention") => {
            return Some(CachePart::Both);
        }
        (_, "com.microsoft", op_type) => op_type.ends_with("Attention"),
        _ => false,
    };
    match slot {
        1 if of_attention => Some(CachePart::Key),
        2 if of_attention => Some(CachePart::Value),
        _ => None,
    }
}

/// Returns the part of attention that a node reads at `slot`, if the node is attention or a product.
pub(super) fn by_reader(graph: &Graph<'_>, node: &Node<'_>, slot: usize) -> Option<CachePart> {
    if node.op_type().ends_with("Attention") {
        return match slot {
            1 => Some(CachePart::Key),
            2 => Some(CachePart::Value),
            _ => None,
        };
    }
    if !is_product(node) || slot > 1 {
        return None;
    }
    let other = node.input(if slot == 0 { 1 } else { 0 })?;
    Some(if comes_from_softmax(graph, other) { CachePart::Value } else { CachePart::Key })
}

pub(super) fn is_product(node: &Node<'_>) -> bool {
    matches!(node.op_type(), "MatMul" | "FusedMatMul" | "Einsum" | "MatMulInteger")
}

/// Returns `true` if a value comes from a softmax. Exporters put casts, dropout or a `Where` that clears NaN
/// after the softmax.
fn comes_from_softmax(graph: &Graph<'_>, value: &str) -> bool {
    let mut value = value;
    for _ in 0..16 {
        let Some((node, 0)) = graph.producer(value) else { return false };
        let before = match node.op_type() {
            "Softmax" => return true,
            "Where" => node.input(2),
            _ => node.input(0).filter(|_| passing::moves(&node) && !node.is("Concat")),
        };
        let Some(before) = before else { return false };
        value = before;
    }
    false
}
