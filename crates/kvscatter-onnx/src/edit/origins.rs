//! Where the nodes of a changed graph come from.

/// The node of an earlier graph that each node of a graph comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(Vec<Option<usize>>);

impl Origins {
    /// Creates the origins of nodes in order. A node may have none.
    pub(crate) fn new(nodes: impl IntoIterator<Item = Option<usize>>) -> Self {
        Self(nodes.into_iter().collect())
    }

    /// Creates the origins of the nodes of a graph that has not been changed.
    pub(crate) fn unchanged(nodes: usize) -> Self {
        Self::new((0..nodes).map(Some))
    }

    /// Returns the index of the node that a node comes from. For a node without an origin, it is that of the next node
    /// with one, because a new node is placed before the first node that needs it.
    pub(crate) fn index_of(&self, node: usize) -> Option<usize> {
        self.0.get(node..)?.iter().flatten().next().copied()
    }

    /// Returns the origins in the graph that an earlier change began with.
    pub(crate) fn after(&self, earlier: &Self) -> Self {
        let earlier = |node: &Option<usize>| node.and_then(|node| earlier.index_of(node));
        Self::new(self.0.iter().map(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::Origins;

    #[test]
    fn origins_are_followed_through_changes() {
        let first = Origins::new([Some(0), None, Some(1), Some(3)]);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|node| first.index_of(node)),
            [Some(0), Some(1), Some(1), Some(3), None]
        );
        let second = Origins::new([Some(3), Some(1), None, Some(0)]);
        let both = second.after(&first);
        assert_eq!([0, 1, 2, 3].map(|node| both.index_of(node)), [Some(3), Some(1), Some(0), Some(0)]);
    }
}
