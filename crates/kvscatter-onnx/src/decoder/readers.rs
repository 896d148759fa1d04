//! Finds the nodes that read caches.

use std::collections::BTreeSet;

use super::Decoder;
use super::cache::Cache;
use crate::Node;
use crate::passing::keeps_shape;

/// The largest number of values that are followed from one cache.
const MAX_VALUES: usize = 64;

/// A node that reads a cache, or a cache of another type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheReader<'m> {
    pub(crate) node: Node<'m>,
    /// The index of the node's input, or `None` if a subgraph reads the value.
    pub(crate) slot: Option<usize>,
}

impl<'m> Decoder<'m> {
    /// Returns the caches that are rings.
    pub(crate) fn rings(&self) -> impl Iterator<Item = &Cache<'m>> {
        self.caches.iter().filter(|cache| cache.is_ring())
    }

    /// Returns the nodes that read a cache, after nodes that keep its shape.
    pub(crate) fn readers(&self, cache: &Cache<'m>) -> Vec<CacheReader<'m>> {
        let mut readers = Vec::new();
        let mut pending = vec![cache.written];
        let mut seen = BTreeSet::new();
        while let Some(value) = pending.pop() {
            if seen.len() >= MAX_VALUES || !seen.insert(value) {
                continue;
            }
            for (node, slot) in self.graph.uses(value).take(MAX_VALUES) {
                if node.reads_shape() {
                    continue;
                }
                match keeps_shape(&node) && slot == Some(0) {
                    true => pending.extend(node.output(0)),
                    false => readers.push(CacheReader { node, slot }),
                }
            }
        }
        readers
    }
}
