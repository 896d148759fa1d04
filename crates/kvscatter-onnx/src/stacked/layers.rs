//! Finds the nodes that read and write the layers of an input with all layers.

use std::collections::{BTreeMap, BTreeSet};

use crate::{DecoderError, Graph, Node, OnnxError, ValueInfo};

/// The reason if a node does not slice the slots up to the new tokens.
pub(super) const NOT_SLICED: &str = "this node does not slice the slots up to the new tokens";

/// The axis of the slots in a cache of one layer, `[batch, slots, width]`.
pub(super) const AXIS: i64 = 1;

/// The nodes of a layer.
pub(super) struct Layer<'m> {
    /// The name of the input with all layers.
    pub(super) stack: &'m str,
    /// The node that cuts the slots up to the new tokens out of the layer.
    pub(super) slots: Node<'m>,
    /// The node that replaces the last slots by new rows.
    pub(super) writer: Node<'m>,
    /// The new rows, `[batch, new, width]`.
    pub(super) rows: &'m str,
    /// The values between the rows and the writer, which have as many elements.
    pub(super) passed: BTreeSet<&'m str>,
    /// The values that split the written slots into heads, `[batch, slots, heads, head size]`.
    pub(super) split: Vec<&'m str>,
    /// The number of heads and their size, if a value splits the slots.
    pub(super) heads: Option<[usize; 2]>,
    /// The node that writes the result back, and the values before it, which have as many elements.
    pub(super) back: (Node<'m>, BTreeSet<&'m str>),
}

/// A node that takes one layer out of a value with all layers.
pub(super) struct Read<'m> {
    pub(super) layer: usize,
    pub(super) value: &'m str,
}

/// Finds the nodes of each layer. `writers` are the scatters that write the layers back, in order.
pub(super) fn layers_of<'m>(
    graph: &Graph<'m>,
    input: &ValueInfo<'m>,
    writers: &[Node<'m>],
) -> Result<Vec<Layer<'m>>, OnnxError> {
    let stack = input.name;
    let mut layers = BTreeMap::new();
    // The number of writes before each read. A layer must be read before its own write.
    let mut before = BTreeMap::new();
    let stacks = std::iter::once(stack).chain(writers.iter().filter_map(|writer| writer.output(0)));
    for (position, value) in stacks.enumerate() {
        for read in reads(graph, value, stack)? {
            for (node, _) in graph.uses(read.value).filter(|(node, _)| !node.reads_shape()) {
                let slots = node.output(0).filter(|_| node.is("Slice")).unwrap_or_default();
                if only_shape(graph, slots) {
                    continue;
                }
                let layer = written(graph, stack, &node)?;
                if before.insert(read.layer, position).is_some() {
                    return Err(refused(&node, stack, "two nodes read the slots of this layer"));
                }
                layers.insert(read.layer, layer);
            }
        }
    }
    let mut all = Vec::new();
    for (index, layer) in layers {
        let written = layer.writer.output(0).unwrap_or_default();
        // Each of the writers reads the one before it, so their indices rise.
        let mut backs = backs(graph, written)
            .into_iter()
            .filter_map(|back| Some((writers.binary_search_by_key(&back.index(), Node::index).ok()?, back)));
        let (back, None) = (backs.next(), backs.next()) else {
            return Err(refused(&layer.writer, stack, "several nodes write the result of this node back"));
        };
        let is_after = |position: &usize| before.get(&index).is_some_and(|before| before <= position);
        let back = back.filter(|(position, _)| is_after(position));
        let Some(back) = back.and_then(|(_, back)| Some((back, passed(graph, back.input(2)?, written)?)))
        else {
            return Err(refused(&layer.writer, stack, "no node writes the result of this node back"));
        };
        if all.len() != index {
            return Err(refused(&layer.writer, stack, "another layer is not written"));
        }
        all.push(Layer { back, ..layer });
    }
    let declared = input.shape.as_ref().and_then(|shape| shape.first()?.size());
    match writers.last().filter(|_| Some(all.len()) != declared || all.len() != writers.len()) {
        Some(last) => Err(refused(last, stack, "not every layer is written once")),
        None => Ok(all),
    }
}

/// Returns the nodes that take layers out of a value with all layers. Other nodes may read its shape, or write to it.
pub(super) fn reads<'m>(graph: &Graph<'m>, value: &str, stack: &str) -> Result<Vec<Read<'m>>, OnnxError> {
    let mut reads = Vec::new();
    for (node, slot) in graph.uses(value) {
        if slot == Some(0) && (node.reads_shape() || node.is("ScatterND")) {
            continue;
        }
        let is_first = node.is("Gather") && slot == Some(0) && node.int("axis")?.unwrap_or(0) == 0;
        let index = node.input(1).filter(|_| is_first);
        let index = index.filter(|index| graph.constant(index).is_some_and(|index| index.dims.is_empty()));
        let layer = index.and_then(|index| usize::try_from(*graph.ints(index)?.first()?).ok());
        match (layer, node.output(0)) {
            (Some(layer), Some(value)) => reads.push(Read { layer, value }),
            _ => return Err(refused(&node, stack, "this node does not read one layer")),
        }
    }
    Ok(reads)
}

/// Returns the nodes of the layer whose slots a node cuts out.
fn written<'m>(graph: &Graph<'m>, stack: &'m str, slots: &Node<'m>) -> Result<Layer<'m>, OnnxError> {
    let cut = slots.output(0).filter(|_| slots.is("Slice"));
    let cut = cut.ok_or_else(|| refused(slots, stack, NOT_SLICED))?;
    let is_written = |(node, slot): &(Node<'m>, Option<usize>)| node.is("ScatterND") && *slot == Some(0);
    let mut writers = graph.uses(cut).filter(|(node, slot)| {
        is_written(&(*node, *slot)) || !(node.reads_shape() || is_cut_for_shape(graph, node))
    });
    let (Some((writer, Some(0))), None) = (writers.next(), writers.next()) else {
        return Err(refused(slots, stack, "another node reads the old rows"));
    };
    let rows = writer.input(2).filter(|_| writer.is("ScatterND"));
    let rows = rows.ok_or_else(|| refused(&writer, stack, "this node does not replace the last rows"))?;
    let passed = order_keeping(graph, rows);
    let first = passed.last().copied().unwrap_or(rows);
    if depends(graph, first, cut) {
        return Err(refused(&writer, stack, "the new rows are computed from the old ones or their shape"));
    }
    let passed = passed.into_iter().chain([rows]).collect();
    let reshapes = graph.uses(writer.output(0).unwrap_or_default());
    let reshapes = reshapes.filter(|(node, slot)| node.is("Reshape") && *slot == Some(0));
    let split = reshapes.filter_map(|(node, _)| node.output(0)).collect();
    Ok(Layer {
        stack,
        slots: *slots,
        writer,
        rows: first,
        passed,
        split,
        heads: None,
        back: (writer, BTreeSet::new()),
    })
}

/// Returns the scatters that write the elements of a value in their order.
fn backs<'m>(graph: &Graph<'m>, written: &'m str) -> Vec<Node<'m>> {
    let (mut backs, mut open) = (Vec::new(), vec![written]);
    while let Some(value) = open.pop() {
        for (node, slot) in graph.uses(value) {
            match slot {
                Some(2) if node.is("ScatterND") => backs.push(node),
                Some(0) if keeps_order(&node) => open.extend(node.output(0)),
                _ => {}
            }
        }
    }
    backs
}

/// Returns the values between two values, if the nodes between them keep the order of elements.
fn passed<'m>(graph: &Graph<'m>, last: &'m str, first: &str) -> Option<BTreeSet<&'m str>> {
    let before = order_keeping(graph, last);
    let end = std::iter::once(&last).chain(&before).position(|value| *value == first)?;
    Some(std::iter::once(last).chain(before).take(end.saturating_add(1)).collect())
}

/// Returns `true` if a node keeps the elements of its first input in their order. `Expand` does so only if the number
/// of elements stays the same, which a proof checks.
fn keeps_order(node: &Node<'_>) -> bool {
    const OPERATORS: [&str; 6] = ["Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"];
    OPERATORS.iter().any(|operator| node.is(operator))
}

/// Returns the values before a value in a chain of nodes that keep the order of elements, nearest first.
fn order_keeping<'m>(graph: &Graph<'m>, mut value: &'m str) -> Vec<&'m str> {
    let mut values = Vec::new();
    while let Some((node, _)) = graph.producer(value)
        && keeps_order(&node)
        && let Some(before) = node.input(0)
    {
        values.push(before);
        value = before;
    }
    values
}

/// Returns `true` if a value is computed from another one, or from its shape.
fn depends(graph: &Graph<'_>, value: &str, on: &str) -> bool {
    let first = graph.producer(on).map_or(0, |(node, _)| node.index());
    let (mut seen, mut open) = (BTreeSet::new(), vec![value]);
    while let Some(value) = open.pop() {
        if value == on {
            return true;
        }
        if seen.insert(value) {
            // Nodes before the first one do not depend on it.
            let node = graph.producer(value).filter(|(node, _)| node.index() > first);
            open.extend(node.into_iter().flat_map(|(node, _)| node.reads()));
        }
    }
    false
}

/// Returns `true` if only the shape of a value is read, or of a part of it.
fn only_shape(graph: &Graph<'_>, value: &str) -> bool {
    !value.is_empty()
        && graph.uses(value).all(|(node, _)| node.reads_shape() || is_cut_for_shape(graph, &node))
        && !graph.is_output(value)
}

fn is_cut_for_shape(graph: &Graph<'_>, node: &Node<'_>) -> bool {
    node.is("Slice") && node.output(0).is_some_and(|part| only_shape(graph, part))
}

pub(super) fn refused(node: &Node<'_>, input: &str, reason: &'static str) -> OnnxError {
    node.error(DecoderError::Stacked { input: input.to_owned(), reason })
}
