//! Follows a value back to the value that it is a copy of, through nodes that pass on one tensor.

use crate::passing::{Passing, passed_on};
use crate::{Graph, Node};

/// The maximum number of nodes that are followed in a row. It bounds the time for a hostile graph.
pub(super) const MAX_STEPS: usize = 64;

/// The path from a value back to its source.
#[derive(Clone, Debug)]
pub(super) struct Path<'m> {
    /// A graph input, an initializer, or the output of a node that computes something else.
    pub(super) source: &'m str,
    /// The nodes on the path, beginning at the source.
    pub(super) steps: Vec<Node<'m>>,
}

impl<'m> Path<'m> {
    /// Walks back from a value through nodes that pass on one tensor. These nodes may change it element by
    /// element, transpose, reshape or cut it.
    pub(super) fn back(graph: &Graph<'m>, value: &'m str) -> Self {
        let mut path = Self { source: value, steps: Vec::new() };
        while path.steps.len() < MAX_STEPS {
            let Some((node, 0)) = graph.producer(path.source) else { break };
            let Some(input) = passed_on(graph, &node) else { break };
            path.source = input;
            path.steps.push(node);
        }
        path.steps.reverse();
        path
    }

    /// Returns the axis of the source that corresponds to an axis of the value.
    ///
    /// Returns `None` if a node on the path changes the rank or the meaning of the axes.
    pub(super) fn axis_at_source(&self, axis: usize) -> Option<usize> {
        let mut axis = axis;
        for node in self.steps.iter().rev() {
            axis = match Passing::of_node(node) {
                Some(Passing::Reshapes) => return None,
                Some(Passing::Transposes) => {
                    usize::try_from(*node.attribute("perm")?.ints.get(axis)?).ok()?
                }
                _ => axis,
            };
        }
        Some(axis)
    }
}
