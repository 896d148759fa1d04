//! Finds the nodes that read caches.

use super::Decoder;
use super::cache::Cache;
use super::follow::follow;
use crate::Node;
use crate::passing::keeps_shape;

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

    /// Returns the nodes that read a cache, after nodes that keep its shape. Codes and scales are read together.
    pub(crate) fn readers(&self, cache: &Cache<'m>) -> Vec<CacheReader<'m>> {
        let mut readers = Vec::new();
        follow(&self.graph, cache.read, (), |node, slot, ()| {
            let is_followed = keeps_shape(node) && slot == Some(0);
            if !is_followed && !node.reads_shape() {
                readers.push(CacheReader { node: *node, slot });
            }
            is_followed.then_some(())
        });
        readers
    }
}
