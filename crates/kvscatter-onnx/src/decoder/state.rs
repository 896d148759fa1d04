//! States beside the caches, which keep their size and are computed anew in every step.
//!
//! The state of a convolution consists of the last columns of its input: those of earlier steps, and then those of new
//! tokens. The operator `CausalConvWithState` returns it, or a graph joins the columns and cuts off the last ones.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::cache::{Cache, UnknownStyle, WriterStyle};
use crate::fold::returns_state;
use crate::{Dimension, Graph, Node, ValueInfo};

/// The axis of the columns of a convolution's state, `[batch, channels, columns]`.
pub(crate) const COLUMNS: i64 = 2;

/// The largest number of nodes that read a value and that are examined. It bounds the time for a hostile graph.
const MAX_READERS: usize = 8;

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
    /// The name of the graph output with the columns of the past and of the new tokens, `[batch, channels, columns]`.
    /// The state after `n` of the tokens is as many columns as a state has, from column `n` on. Only convolutions have
    /// this output, and only if [`convert`](crate::convert::convert()) has added it.
    pub columns: Option<&'m str>,
    /// The new columns of a convolution, or `None` for a recurrent state.
    pub(crate) new: Option<NewColumns<'m>>,
}

/// The columns that a step adds to the state of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewColumns<'m> {
    /// The input of an operator, `[batch, channels, tokens]`.
    OfOperator(&'m str),
    /// The value that already has the columns of the past before them.
    Joined(&'m str),
}

/// Returns `true` if the second output of a node is a state.
pub(super) fn is_operator(node: &Node<'_>) -> bool {
    returns_state(node.domain(), node.op_type())
}

/// Finds the outputs that return [`State::columns`], with the pasts that they begin with.
pub(super) fn columns<'m>(graph: &Graph<'m>, outputs: &[ValueInfo<'m>]) -> BTreeMap<&'m str, &'m str> {
    let columns = |output: &ValueInfo<'m>| {
        let (join, _) = graph.producer(output.name).filter(|(node, _)| is_join(node))?;
        let [past, new] = [join.input(0)?, join.input(1)?];
        let is_operator = |(node, slot): (Node<'m>, Option<usize>)| {
            slot == Some(3) && is_convolution(&node) && node.input(0) == Some(new)
        };
        let is_cut = |(node, _): (Node<'m>, Option<usize>)| {
            node.is("Slice") && node.output(0).is_some_and(|cut| graph.is_output(cut))
        };
        let readers = |value| graph.uses(value).take(MAX_READERS);
        let is_state = readers(past).any(is_operator) || readers(output.name).any(is_cut);
        (graph.is_input(past) && is_state).then_some((past, output.name))
    };
    outputs.iter().filter_map(columns).collect()
}

/// Takes the states out of what was found as caches. `columns` are those that [`columns`] found.
pub(super) fn take<'m>(
    graph: &Graph<'m>,
    caches: &mut Vec<Cache<'m>>,
    columns: &BTreeMap<&'m str, &'m str>,
) -> Vec<State<'m>> {
    let mut states = Vec::new();
    caches.retain(|cache| {
        let Some(writer) = cache.writer.filter(|writer| is_state(graph, cache, writer)) else { return true };
        states.push(State {
            past: cache.past,
            present: cache.present,
            writer,
            element: cache.element,
            shape: cache.past_shape.clone(),
            present_info: cache.present_info.clone(),
            columns: columns.get(cache.past).copied(),
            new: new_columns(cache, &writer),
        });
        false
    });
    states
}

fn is_state<'m>(graph: &Graph<'m>, cache: &Cache<'m>, writer: &Node<'m>) -> bool {
    match cache.style {
        WriterStyle::Unknown(UnknownStyle::Operator { .. }) => is_operator(writer),
        WriterStyle::Unknown(UnknownStyle::Cut { rows: Some(rows) }) => {
            let mut readers = graph.uses(cache.written).take(MAX_READERS);
            let is_convolved = readers.any(|(reader, _)| reader.is("Conv"));
            is_join(writer) && is_convolved && size(cache) == Some(rows)
        }
        _ => false,
    }
}

/// Returns `true` for a node that joins two values along the columns.
fn is_join(node: &Node<'_>) -> bool {
    let axis = node.attribute("axis").and_then(|axis| axis.i);
    node.is("Concat") && node.proto().input.len() == 2 && [Some(-1), Some(COLUMNS)].contains(&axis)
}

/// Returns `true` for a convolution whose state an operator returns. A function may compute another state than the
/// operator of its name.
fn is_convolution(node: &Node<'_>) -> bool {
    is_operator(node) && node.op_type() == "CausalConvWithState" && !node.is_function()
}

fn new_columns<'m>(cache: &Cache<'m>, writer: &Node<'m>) -> Option<NewColumns<'m>> {
    size(cache)?;
    match writer.op_type() {
        "Concat" => Some(NewColumns::Joined(cache.written)),
        _ if is_convolution(writer) => writer.input(0).map(NewColumns::OfOperator),
        _ => None,
    }
}

/// Returns the number of columns of a convolution's state, if the past declares it.
fn size(cache: &Cache<'_>) -> Option<usize> {
    match cache.past_shape.as_slice() {
        [_, _, columns] => columns.size(),
        _ => None,
    }
}
