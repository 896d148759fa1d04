//! States beside the caches, which keep their size and are computed anew in every step.
//!
//! The state of a convolution consists of the last columns of its input: those of earlier steps, and then those of new
//! tokens. The operator `CausalConvWithState` returns it, or a graph joins the columns and cuts off the last ones.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::cache::{Cache, UnknownStyle, WriterStyle};
use super::cut::keeps_last;
use super::trace::Path;
use crate::fold::returns_state;
use crate::{Dimension, Graph, Node, ValueInfo};

/// The rank of a convolution's state, `[batch, channels, columns]`.
const RANK: usize = 3;

/// The axis of the columns.
pub(crate) const COLUMNS: usize = 2;

/// The largest number of nodes that read a value and that are examined. It bounds the time for a hostile graph.
const MAX_READERS: usize = 8;

/// A recurrent or convolution state. A step reads all of it and returns all of it.
///
/// A state depends on every token that was fed, padding included. It has no slots, so a sample can only be truncated
/// with [`columns`](Self::columns), and all samples of a batch must get the same number of tokens.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The outputs that return columns of states.
#[derive(Debug, Default)]
pub(super) struct ColumnsOutputs<'m> {
    /// The outputs, by the past that they begin with, each with its new columns.
    by_past: BTreeMap<&'m str, Vec<(&'m str, NewColumns<'m>)>>,
    names: BTreeSet<&'m str>,
}

impl<'m> ColumnsOutputs<'m> {
    /// Finds the outputs.
    pub(super) fn find(graph: &Graph<'m>, inputs: &[ValueInfo<'m>], outputs: &[ValueInfo<'m>]) -> Self {
        let by_name: BTreeMap<_, _> = inputs.iter().map(|input| (input.name, input)).collect();
        let mut found = Self::default();
        for output in outputs {
            let Some((join, _)) = graph.producer(output.name).filter(|(node, _)| is_join(node)) else {
                continue;
            };
            let (Some(past), Some(new)) = (join.input(0).and_then(|past| by_name.get(past)), join.input(1))
            else {
                continue;
            };
            let Some(size) = past.shape.as_deref().and_then(size) else { continue };
            let is_operator = |(node, slot): (Node<'m>, Option<usize>)| {
                slot == Some(3) && is_convolution(&node) && node.input(0) == Some(new)
            };
            let is_cut = |(node, _): (Node<'m>, Option<usize>)| {
                keeps_last(graph, &node, size, COLUMNS, RANK)
                    && node.output(0).is_some_and(|cut| graph.is_output(cut))
            };
            let new = if graph.uses(past.name).take(MAX_READERS).any(is_operator) {
                NewColumns::OfOperator(new)
            } else if is_convolved(graph, output.name)
                && graph.uses(output.name).take(MAX_READERS).any(is_cut)
            {
                NewColumns::Joined(output.name)
            } else {
                continue;
            };
            found.by_past.entry(past.name).or_default().push((output.name, new));
            found.names.insert(output.name);
        }
        found
    }

    /// Returns `true` if an output returns columns.
    pub(super) fn contain(&self, output: &str) -> bool {
        self.names.contains(output)
    }

    /// Returns the output with the columns of a past and with these new columns.
    fn output(&self, past: &str, new: NewColumns<'_>) -> Option<&'m str> {
        let mut outputs = self.by_past.get(past)?.iter();
        outputs.find(|(_, of)| *of == new).map(|(output, _)| *output)
    }
}

/// Takes the states out of what was found as caches.
pub(super) fn take<'m>(
    graph: &Graph<'m>,
    caches: &mut Vec<Cache<'m>>,
    columns: &ColumnsOutputs<'m>,
) -> Vec<State<'m>> {
    let mut states = Vec::new();
    caches.retain(|cache| {
        let Some(writer) = cache.writer.filter(|writer| is_state(graph, cache, writer)) else { return true };
        let new = new_columns(cache, &writer);
        states.push(State {
            past: cache.past,
            present: cache.present,
            writer,
            element: cache.element,
            shape: cache.past_shape.clone(),
            present_info: cache.present_info.clone(),
            columns: new.and_then(|new| columns.output(cache.past, new)),
            new,
        });
        false
    });
    states
}

fn is_state<'m>(graph: &Graph<'m>, cache: &Cache<'m>, writer: &Node<'m>) -> bool {
    match cache.style {
        WriterStyle::Unknown(UnknownStyle::Operator { .. }) => is_operator(writer),
        WriterStyle::Unknown(UnknownStyle::Cut { rows: Some(rows) }) => {
            let has_size = size(&cache.past_shape) == Some(rows);
            has_size
                && is_join(writer)
                && is_convolved(graph, cache.written)
                && is_cut_once(graph, cache, rows)
        }
        _ => false,
    }
}

/// Returns `true` if one `Slice` after the writer, and nothing else but casts, is between the past and the present.
fn is_cut_once<'m>(graph: &Graph<'m>, cache: &Cache<'m>, rows: usize) -> bool {
    let mut others = cache.between.iter().filter(|node| !node.is("Cast"));
    let (Some(slice), None) = (others.next(), others.next()) else { return false };
    let source = slice.output(0).map(|cut| Path::back(graph, cut).source);
    cache.earlier.is_empty() && source == Some(cache.written) && keeps_last(graph, slice, rows, COLUMNS, RANK)
}

/// Returns the number of columns of a state with this shape, if it is known.
fn size(shape: &[Dimension<'_>]) -> Option<usize> {
    match *shape {
        [_, _, Dimension::Known(size)] => Some(size).filter(|size| *size > 0),
        _ => None,
    }
}

/// Returns `true` if a value is the input of a convolution.
fn is_convolved(graph: &Graph<'_>, value: &str) -> bool {
    let mut readers = graph.uses(value).take(MAX_READERS);
    readers.any(|(reader, slot)| reader.is("Conv") && slot == Some(0))
}

/// Returns `true` for a node that joins two values along the columns.
fn is_join(node: &Node<'_>) -> bool {
    let axis = node.attribute("axis").and_then(|axis| axis.i);
    node.is("Concat") && node.proto().input.len() == 2 && [Some(-1), Some(2)].contains(&axis)
}

/// Returns `true` for a convolution whose state an operator returns. A function may compute another state than the
/// operator of its name.
fn is_convolution(node: &Node<'_>) -> bool {
    is_operator(node) && node.op_type() == "CausalConvWithState" && !node.is_function()
}

/// Returns the new columns of a convolution's state, if they can follow the past itself and the present is cut from
/// them. Casts between them may change columns.
fn new_columns<'m>(cache: &Cache<'m>, writer: &Node<'m>) -> Option<NewColumns<'m>> {
    size(&cache.past_shape)?;
    let is = |value: Option<&str>, name: &str| value == Some(name);
    match cache.between.as_slice() {
        [slice] if writer.is("Concat") => {
            let is_direct = is(writer.input(0), cache.past)
                && is(slice.input(0), cache.written)
                && is(slice.output(0), cache.present);
            is_direct.then_some(NewColumns::Joined(cache.written))
        }
        [] if is_convolution(writer) => {
            let is_direct = is(writer.input(3), cache.past) && is(writer.output(1), cache.present);
            writer.input(0).filter(|_| is_direct).map(NewColumns::OfOperator)
        }
        _ => None,
    }
}
