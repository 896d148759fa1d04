//! Finds caches on which no result depends.

use std::collections::BTreeSet;

use super::cache::{Cache, CachePart, WriterStyle};
use crate::Graph;

/// Returns the caches whose attention has a result that reaches neither an output nor another cache.
///
/// There are none if no attention reads any cache, because a graph for the first step of a text only fills them.
pub(super) fn caches<'c, 'm>(graph: &Graph<'m>, caches: &'c [Cache<'m>]) -> Vec<&'c Cache<'m>> {
    if caches.iter().all(|cache| cache.part == CachePart::Unknown) {
        return Vec::new();
    }
    let presents: BTreeSet<_> =
        caches.iter().flat_map(|cache| cache.copies.iter().copied().chain([cache.present])).collect();
    // Each node is followed once, because one node may produce all caches from all inputs.
    let (mut needed, mut followed) = (BTreeSet::new(), BTreeSet::new());
    let mut pending: Vec<&str> = graph.output_names().filter(|output| !presents.contains(output)).collect();
    for writer in caches.iter().filter_map(|cache| cache.writer) {
        if followed.insert(writer.index()) {
            pending.extend(writer.reads());
        }
    }
    while let Some(value) = pending.pop() {
        if needed.insert(value)
            && let Some((node, _)) = graph.producer(value)
            && followed.insert(node.index())
        {
            pending.extend(node.reads());
        }
    }
    let is_unused = |cache: &&Cache<'m>| match (&cache.style, cache.writer) {
        (WriterStyle::Unknown(_), _) => false,
        // Attention may read the cache between two writers.
        _ if !cache.earlier.is_empty() => false,
        (WriterStyle::AttentionPast | WriterStyle::GroupQueryAttention, Some(writer)) => {
            !writer.output(0).is_some_and(|result| needed.contains(result))
        }
        _ => !needed.contains(cache.written),
    };
    caches.iter().filter(is_unused).collect()
}
