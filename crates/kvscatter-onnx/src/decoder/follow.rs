//! Follows a value forward through the nodes that read it.

use std::collections::BTreeSet;

use crate::{Graph, Node};

/// The largest number of values that are followed from one value, of nodes that are examined for each of them, and of
/// outputs of such a node. Caches in real exports reach their attention within a dozen nodes.
pub(super) const MAX_VALUES: usize = 64;

/// Follows a value with a meaning. Calls `visit` for each node that reads a followed value, with the index of the
/// input, which is `None` if a subgraph of the node reads the value. The outputs of the node are followed with the
/// meaning that `visit` returns, and are not followed if it returns `None`.
///
/// Returns the values that are followed.
pub(super) fn follow<'m, M: Copy + Ord>(
    graph: &Graph<'m>,
    value: &'m str,
    meaning: M,
    mut visit: impl FnMut(&Node<'m>, Option<usize>, M) -> Option<M>,
) -> BTreeSet<(&'m str, M)> {
    let mut pending = vec![(value, meaning)];
    let mut followed = BTreeSet::from([(value, meaning)]);
    while let Some((value, meaning)) = pending.pop() {
        for (node, slot) in graph.uses(value).take(MAX_VALUES) {
            let Some(next) = visit(&node, slot, meaning) else { continue };
            for output in node.outputs().take(MAX_VALUES) {
                if followed.len() < MAX_VALUES && followed.insert((output, next)) {
                    pending.push((output, next));
                }
            }
        }
    }
    followed
}
