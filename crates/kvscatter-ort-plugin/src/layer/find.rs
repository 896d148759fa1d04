//! Finds the nodes of a layer in a graph.

use super::graph::{NamedGraph, NamedNode};
use super::rows::{FreeNodes, exchanges, rows};
use super::{Layer, Packed, Rows, find_writes};
use crate::node::Attributes;
use crate::operators::{Attention, Operator};
use crate::status::CallError;

/// Returns the layer of an `Attention` node, which the provider takes. The layer has only nodes that are `free`.
///
/// Returns `None` if the node does not attend to two caches that the graph has as inputs and, after a write, as
/// outputs, if the layer uses a cache for something else too, or if two values of the graph have the same name.
pub(crate) fn find(
    graph: &NamedGraph<'_>,
    attention: usize,
    free: impl Fn(usize) -> bool,
) -> Result<Option<Layer>, CallError> {
    if !graph.has_unique_names {
        return Ok(None);
    }
    let graph = &FreeNodes { graph, is_free: &free };
    let Some(node) = graph.node(attention) else { return Ok(None) };
    if !node.node.is(Attention::NAME)? || node.input(4).is_some() {
        return Ok(None);
    }
    let (Some(query), Some(key), Some(value), Some(output)) =
        (node.input(0), node.input(1), node.input(2), node.output())
    else {
        return Ok(None);
    };
    let mut nodes = vec![attention];
    let mut kernels = vec![attention];
    let mut write = |read| find_writes::write(graph, node, read, &mut nodes, &mut kernels);
    let (Some(mut key), Some(mut value)) = (write(key)?, write(value)?) else { return Ok(None) };
    if core::mem::discriminant(&key.storage) != core::mem::discriminant(&value.storage) {
        return Ok(None);
    }
    let mut query = rows(graph, query, &[attention], &mut nodes)?;
    let packed = packed(graph, [&mut query, &mut key.rows, &mut value.rows], &mut nodes)?;
    let (mut output, mut is_output_by_token, mut output_shape) = (output, false, None);
    if let Some((index, after)) = graph.reader(output)
        && let Some(transposed) = after.output()
        && exchanges(after)?
    {
        (output, is_output_by_token) = (transposed, true);
        nodes.push(index);
    }
    if let Some((index, after)) = graph.reader(output)
        && let (Some(shape), Some(reshaped)) = (after.input(1), after.output())
        && after.input(0) == Some(output)
        && reshapes(after)?
    {
        (output, output_shape) = (reshaped, Some(shape));
        nodes.push(index);
    }
    let (mask, lengths) = (node.input(3), node.input(6));
    let mut layer = Layer {
        nodes,
        kernels,
        packed,
        query,
        key,
        value,
        mask,
        lengths,
        output,
        is_output_by_token,
        output_shape,
    };
    // A call writes a cache in place while it reads the other inputs.
    let pasts: Vec<_> = layer.pasts().collect();
    let inputs: Vec<_> = layer.inputs_mut().into_iter().map(|input| *input).collect();
    let is_read_once = |past: usize| inputs.iter().filter(|input| **input == past).count() == 1;
    Ok(pasts.into_iter().all(is_read_once).then_some(layer))
}

/// Returns how queries, keys and values are cut from one tensor, if they are the three parts of a `Split` of a
/// `Reshape`. The three are then read from this tensor, and the two nodes are added to `nodes`.
fn packed(
    graph: &FreeNodes<'_, '_>,
    parts: [&mut Rows; 3],
    nodes: &mut Vec<usize>,
) -> Result<Option<Packed>, CallError> {
    let Some((split, node)) = graph.producer(parts[0].value) else { return Ok(None) };
    let numbers = parts.each_ref().map(|rows| {
        let is_only_ours = rows.is_by_token && graph.graph.only_reader(rows.value).is_some();
        node.outputs.iter().position(|output| is_only_ours && *output == Some(rows.value))
    });
    let ([Some(one), Some(two), Some(three)], 3) = (numbers, node.outputs.len()) else { return Ok(None) };
    let (Some(all), Some(sizes)) = (node.input(0), node.input(1)) else { return Ok(None) };
    let is_split = node.node.is(c"Split")? && matches!(node.node.integer(c"axis")?, Some(2 | -2));
    let Some((reshape, before)) = graph.producer(all) else { return Ok(None) };
    let (Some(from), Some(shape)) = (before.input(0), before.input(1)) else { return Ok(None) };
    // The shape of the product has two dimensions before the heads, so axis 2 is that of the heads.
    let has_rank_4 = node.node.inputs()?.first().and_then(|all| all.rank()) == Some(4);
    if !is_split || !has_rank_4 || graph.graph.only_reader(all).is_none() || !reshapes(before)? {
        return Ok(None);
    }
    for (rows, number) in parts.into_iter().zip([one, two, three]) {
        (rows.value, rows.part) = (from, number);
    }
    nodes.extend([split, reshape]);
    Ok(Some(Packed { shape, sizes }))
}

/// Returns whether a node is a `Reshape` in which 0 stands for a dimension of the input.
fn reshapes(node: &NamedNode<'_>) -> Result<bool, CallError> {
    Ok(node.node.is(c"Reshape")? && node.node.integer(c"allowzero")?.unwrap_or(0) == 0)
}
