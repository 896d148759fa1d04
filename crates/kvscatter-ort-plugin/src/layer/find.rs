//! Finds the nodes of a layer in a graph.

use kvscatter_attention::RotaryOrder;

use super::graph::{NamedGraph, NamedNode};
use super::{Layer, Packed, Rotation, Rows, Write};
use crate::node::Attributes;
use crate::operators::{Attention, Operator, TensorScatter, tensor_scatter};
use crate::status::CallError;

/// The order of dimensions that exchanges the heads and the tokens.
const BY_HEAD: [i64; 4] = [0, 2, 1, 3];

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
    let (Some(mut key), Some(mut value)) = (write(graph, key, &mut nodes)?, write(graph, value, &mut nodes)?)
    else {
        return Ok(None);
    };
    let mut query = rows(graph, query, &mut nodes)?;
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
    let kernels = [attention, key.node, value.node];
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
    let pasts = [layer.key.past, layer.value.past];
    let inputs: Vec<_> = layer.inputs_mut().into_iter().map(|input| *input).collect();
    let is_read_once = |past: usize| inputs.iter().filter(|input| **input == past).count() == 1;
    Ok(pasts.into_iter().all(is_read_once).then_some(layer))
}

/// The nodes of a graph that no other layer has.
struct FreeNodes<'g, 'a> {
    graph: &'g NamedGraph<'a>,
    is_free: &'g dyn Fn(usize) -> bool,
}

impl<'g, 'a> FreeNodes<'g, 'a> {
    fn node(&self, index: usize) -> Option<&'g NamedNode<'a>> {
        self.graph.nodes.get(index).filter(|_| (self.is_free)(index))
    }

    /// Returns the only node that reads a value, with its number.
    fn reader(&self, value: usize) -> Option<(usize, &'g NamedNode<'a>)> {
        let index = self.graph.only_reader(value)?;
        Some((index, self.node(index)?))
    }

    /// Returns the node that computes a value, with its number.
    fn producer(&self, value: usize) -> Option<(usize, &'g NamedNode<'a>)> {
        let index = self.graph.producer(value)?;
        Some((index, self.node(index)?))
    }
}

/// Returns the write whose result is `present`. Adds its nodes to `nodes`.
fn write(
    graph: &FreeNodes<'_, '_>,
    present: usize,
    nodes: &mut Vec<usize>,
) -> Result<Option<Write>, CallError> {
    let Some((index, node)) = graph.producer(present) else { return Ok(None) };
    // Only `Attention` may read the present, so no input of the group depends on it.
    if !node.node.is(TensorScatter::NAME)?
        || !graph.graph.is_read_once(present)
        || !graph.graph.outputs.contains(&present)
    {
        return Ok(None);
    }
    let (Some(past), Some(update)) = (node.input(0), node.input(1)) else { return Ok(None) };
    let axis = node.node.integer(c"axis")?;
    let has_rank_4 = node.node.inputs()?.first().and_then(|past| past.rank()) == Some(4);
    if !graph.graph.inputs.contains(&past) || !has_rank_4 || !matches!(axis, None | Some(2 | -2)) {
        return Ok(None);
    }
    nodes.push(index);
    Ok(Some(Write {
        node: index,
        rows: rows(graph, update, nodes)?,
        past,
        present,
        indices: node.input(2),
        operator: tensor_scatter::operator(axis, node.node.short_string(c"mode")?)?,
    }))
}

/// Returns the rows from which `value` is computed by a rotation and a transposition. Adds these nodes to `nodes`.
fn rows(graph: &FreeNodes<'_, '_>, value: usize, nodes: &mut Vec<usize>) -> Result<Rows, CallError> {
    let mut rows = Rows { value, part: 0, is_by_token: false, rotation: None };
    if graph.graph.only_reader(rows.value).is_some()
        && let Some((index, node)) = graph.producer(rows.value)
        && let Some(rotation) = rotation(node)?
        && let Some(rotated) = node.input(0)
    {
        rows.rotation = Some(rotation);
        rows.value = rotated;
        nodes.push(index);
    }
    if graph.graph.only_reader(rows.value).is_some()
        && let Some((index, node)) = graph.producer(rows.value)
        && let Some(transposed) = node.input(0)
        && exchanges(node)?
    {
        rows.is_by_token = true;
        rows.value = transposed;
        nodes.push(index);
    }
    Ok(rows)
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

fn rotation(node: &NamedNode<'_>) -> Result<Option<Rotation>, CallError> {
    if !node.node.is(c"RotaryEmbedding")?
        || node.node.inputs()?.first().and_then(|rows| rows.rank()) != Some(4)
    {
        return Ok(None);
    }
    let (Some(cos), Some(sin), Some(positions)) = (node.input(1), node.input(2), node.input(3)) else {
        return Ok(None);
    };
    let order = match node.node.integer(c"interleaved")?.unwrap_or(0) {
        0 => RotaryOrder::Halves,
        1 => RotaryOrder::Interleaved,
        _ => return Ok(None),
    };
    let size = usize::try_from(node.node.integer(c"rotary_embedding_dim")?.unwrap_or(0));
    let Ok(size) = size else { return Ok(None) };
    Ok(Some(Rotation { cos, sin, positions, order, size }))
}

/// Returns whether a node exchanges the heads and the tokens.
fn exchanges(node: &NamedNode<'_>) -> Result<bool, CallError> {
    Ok(node.node.is(c"Transpose")? && matches!(node.node.four_integers(c"perm"), Ok(Some(BY_HEAD))))
}
