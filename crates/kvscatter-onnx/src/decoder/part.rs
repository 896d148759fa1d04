//! Determines whether a cache contains keys or values, from the nodes that read it.

use super::cache::{Cache, CachePart, WriterStyle};
use super::follow::follow;
use crate::passing::{self, is_projection, leads_from_cache};
use crate::{Graph, Node};

/// Determines the contents of a cache by following it from its writer to the product that uses it.
///
/// A cache that is multiplied by the output of a `Softmax` contains values. A cache that is multiplied by
/// another value contains keys. If constant weights are multiplied with it before, it contains latents.
pub(super) fn find(graph: &Graph<'_>, cache: &Cache<'_>) -> CachePart {
    if let Some(part) = cache.writer.as_ref().and_then(|writer| by_writer(graph, cache, writer)) {
        return part;
    }
    let (mut found, mut is_split, mut is_latent) = (None, false, false);
    follow(graph, cache.written, (), |node, slot, ()| {
        let slot = slot?;
        let part = by_reader(graph, node, slot);
        found = match (found, part) {
            // Only a cache that is split can contain both.
            (Some(found), Some(part)) if is_split && found != part => Some(CachePart::Both),
            _ => found.or(part),
        };
        is_split |= found.is_none() && node.is("Split");
        is_latent |= is_projection(graph, node, slot);
        leads_from_cache(graph, node, slot).then_some(())
    });
    match found {
        Some(_) if is_latent => CachePart::Latent,
        found => found.unwrap_or(CachePart::Unknown),
    }
}

/// Returns the contents of a cache that an attention operator writes, from the index of the output.
pub(super) fn by_writer(graph: &Graph<'_>, cache: &Cache<'_>, writer: &Node<'_>) -> Option<CachePart> {
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
    if !is_product(node) || slot > 1 || is_projection(graph, node, slot) {
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
            "Where" => {
                [1, 2].into_iter().filter_map(|slot| node.input(slot)).find(|name| !graph.is_constant(name))
            }
            _ => node.input(0).filter(|_| passing::moves(&node) && !node.is("Concat")),
        };
        let Some(before) = before else { return false };
        value = before;
    }
    false
}
