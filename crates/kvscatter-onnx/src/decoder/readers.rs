//! Finds the nodes that read caches.

use std::collections::BTreeSet;

use super::Decoder;
use super::cache::{Cache, CachePart};
use super::follow::{MAX_VALUES, follow};
use super::part::{self, by_reader};
use super::writer::appends_nothing;
use crate::Node;
use crate::passing::{keeps_shape, leads_from_cache};

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

    /// Returns the number of attention operations that read a cache, or `None` if it is read in too many places to be
    /// counted. Layers that share a cache read it after the layer that writes it.
    #[must_use]
    pub fn attentions(&self, cache: &Cache<'m>) -> Option<usize> {
        let writer = cache.writer.filter(|writer| part::by_writer(&self.graph, cache, writer).is_some());
        // An operation that is one node reads keys and values.
        let mut readers: BTreeSet<_> = writer.iter().map(|writer| (writer.index(), None)).collect();
        let followed = follow(&self.graph, cache.read, (), |node, slot, ()| {
            let slot = slot?;
            let is_shared = || (slot == 3 || slot == 4) && appends_nothing(&self.graph, node);
            match by_reader(&self.graph, node, slot) {
                Some(part) => _ = readers.insert((node.index(), Some(part))),
                None if is_shared() => _ = readers.insert((node.index(), None)),
                None => {}
            }
            leads_from_cache(&self.graph, node, slot).then_some(())
        });
        let without = |other| readers.iter().filter(|(_, part)| *part != Some(other)).count();
        let count = without(CachePart::Key).max(without(CachePart::Value));
        (followed.len() < MAX_VALUES).then_some(count)
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
