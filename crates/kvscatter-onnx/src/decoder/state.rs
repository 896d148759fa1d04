//! States beside the caches, which keep their size and are computed anew in every step.

use kvscatter::ElementType;

use super::cache::{Cache, UnknownStyle, WriterStyle};
use crate::fold::returns_state;
use crate::{Dimension, Node, ValueInfo};

/// A recurrent or convolution state. A step reads all of it and returns all of it.
///
/// A state depends on every token that was fed, padding included. It has no slots, so a sample cannot be
/// truncated, and all samples of a batch must get the same number of tokens.
#[derive(Clone, Debug)]
pub struct State<'m> {
    /// The name of the graph input with the state before a step.
    pub past: &'m str,
    /// The name of the graph output with the state after a step. It is the next step's past.
    pub present: &'m str,
    /// The node that computes the state.
    pub writer: Node<'m>,
    /// The element type.
    pub element: ElementType,
    /// The declared shape of the past.
    pub shape: Vec<Dimension<'m>>,
    /// The declaration of the present.
    pub present_info: ValueInfo<'m>,
}

/// Returns `true` if the second output of a node is a state.
pub(super) fn is_operator(node: &Node<'_>) -> bool {
    returns_state(node.domain(), node.op_type())
}

/// Takes the states out of what was found as caches.
pub(super) fn take<'m>(caches: &mut Vec<Cache<'m>>) -> Vec<State<'m>> {
    let mut states = Vec::new();
    caches.retain(|cache| match (&cache.style, cache.writer) {
        (WriterStyle::Unknown(UnknownStyle::Operator { .. }), Some(writer)) if is_operator(&writer) => {
            states.push(State {
                past: cache.past,
                present: cache.present,
                writer,
                element: cache.element,
                shape: cache.past_shape.clone(),
                present_info: cache.present_info.clone(),
            });
            false
        }
        _ => true,
    });
    states
}
