//! From a value back to what it is a copy of, through nodes that hand one tensor on.

use super::flow::Flow;
use crate::Node;

/// More nodes in a row than this are not followed, which bounds the time a hostile graph can take.
pub(super) const MAX_STEPS: usize = 64;

/// A way back from a value to where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Path<'m> {
    /// A graph input, an initializer, or what a node makes that is no step.
    pub(super) source: &'m str,
    /// The nodes on the way, from the source on.
    pub(super) steps: Vec<Node<'m>>,
}

impl<'m> Path<'m> {
    /// Walks back from a value for as long as one tensor is handed on, perhaps changed element by element, turned,
    /// reshaped or cut.
    pub(super) fn back(flow: &Flow<'m>, value: &'m str) -> Self {
        let mut path = Self { source: value, steps: Vec::new() };
        while path.steps.len() < MAX_STEPS {
            let Some((node, 0)) = flow.maker(path.source) else { break };
            let Some(input) = handed_on(flow, &node) else { break };
            path.source = input;
            path.steps.push(node);
        }
        path.steps.reverse();
        path
    }

    /// The axis of the source that an axis of the value is. `None` if a node on the way changes the rank, or what
    /// an axis means.
    pub(super) fn axis_at_source(&self, axis: usize) -> Option<usize> {
        let mut axis = axis;
        for node in self.steps.iter().rev() {
            axis = match node.op_type() {
                "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => return None,
                "Transpose" => usize::try_from(*node.attribute("perm")?.ints.get(axis)?).ok()?,
                _ => axis,
            };
        }
        Some(axis)
    }
}

/// The input whose tensor a node hands on; `None` for nodes that compute something else.
pub(super) fn handed_on<'m>(flow: &Flow<'m>, node: &Node<'m>) -> Option<&'m str> {
    if node.is_function() {
        return None;
    }
    let is_default = node.domain() == crate::graph::DEFAULT_DOMAIN;
    match node.op_type() {
        "QuantizeLinear" | "DequantizeLinear" => node.input(0),
        "Identity" | "Cast" | "CastLike" | "Neg" | "Abs" | "Clip" | "Dropout" | "Transpose" | "Reshape"
        | "Squeeze" | "Unsqueeze" | "Flatten" | "Slice" | "Pad"
            if is_default =>
        {
            node.input(0)
        }
        "Add" | "Sub" | "Mul" | "Div" if is_default => {
            let (left, right) = (node.input(0)?, node.input(1)?);
            match (flow.is_constant(left), flow.is_constant(right)) {
                (false, true) => Some(left),
                (true, false) => Some(right),
                _ => None,
            }
        }
        _ => None,
    }
}
