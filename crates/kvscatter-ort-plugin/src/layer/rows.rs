//! Finds the nodes that compute new rows: queries, keys or values.

use kvscatter::ElementType;
use kvscatter::quantize::{rotation_block, rotation_element};
use kvscatter_attention::RotaryOrder;

use super::graph::{NamedGraph, NamedNode};
use super::{Rotation, Rows};
use crate::node::Attributes;
use crate::status::CallError;

/// The order of dimensions that exchanges the heads and the tokens.
const BY_HEAD: [i64; 4] = [0, 2, 1, 3];

/// The nodes of a graph that no other layer has.
pub(super) struct FreeNodes<'g, 'a> {
    pub(super) graph: &'g NamedGraph<'a>,
    pub(super) is_free: &'g dyn Fn(usize) -> bool,
}

impl<'g, 'a> FreeNodes<'g, 'a> {
    pub(super) fn node(&self, index: usize) -> Option<&'g NamedNode<'a>> {
        self.graph.nodes.get(index).filter(|_| (self.is_free)(index))
    }

    /// Returns the only node that reads a value, with its number.
    pub(super) fn reader(&self, value: usize) -> Option<(usize, &'g NamedNode<'a>)> {
        let index = self.graph.only_reader(value)?;
        Some((index, self.node(index)?))
    }

    /// Returns the node that computes a value, with its number, if only these nodes read the value.
    pub(super) fn inner_producer(&self, value: usize, nodes: &[usize]) -> Option<(usize, &'g NamedNode<'a>)> {
        self.producer(value).filter(|_| self.graph.is_read_only_by(value, nodes))
    }

    /// Returns the node that computes a value, with its number.
    pub(super) fn producer(&self, value: usize) -> Option<(usize, &'g NamedNode<'a>)> {
        let index = self.graph.producer(value)?;
        Some((index, self.node(index)?))
    }
}

/// Returns the rows from which `value` is computed by a transposition, a rotation by positions, and a product with the
/// Hadamard matrix. Adds these nodes to `nodes`. `readers` are the nodes of the layer that read `value`.
pub(super) fn rows(
    graph: &FreeNodes<'_, '_>,
    value: usize,
    readers: &[usize],
    nodes: &mut Vec<usize>,
) -> Result<Rows, CallError> {
    let mut readers = readers.to_vec();
    let mut rows = Rows { value, part: 0, is_by_token: false, rotation: None, has_hadamard: false };
    if let Some((index, node)) = graph.inner_producer(rows.value, &readers)
        && let Some(multiplied) = node.input(0)
        && multiplies_with_hadamard(graph, node)?
    {
        rows.has_hadamard = true;
        rows.value = multiplied;
        readers = vec![index];
        nodes.push(index);
    }
    if let Some((index, node)) = graph.inner_producer(rows.value, &readers)
        && let Some(rotation) = rotation(node)?
        && let Some(rotated) = node.input(0)
    {
        rows.rotation = Some(rotation);
        rows.value = rotated;
        readers = vec![index];
        nodes.push(index);
    }
    if let Some((index, node)) = graph.inner_producer(rows.value, &readers)
        && let Some(transposed) = node.input(0)
        && exchanges(node)?
    {
        rows.is_by_token = true;
        rows.value = transposed;
        nodes.push(index);
    }
    Ok(rows)
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
pub(super) fn exchanges(node: &NamedNode<'_>) -> Result<bool, CallError> {
    Ok(node.node.is(c"Transpose")? && matches!(node.node.four_integers(c"perm"), Ok(Some(BY_HEAD))))
}

/// Returns whether a node multiplies rows of float32 with the matrix of [`kvscatter::quantize::rotate_row`].
fn multiplies_with_hadamard(graph: &FreeNodes<'_, '_>, node: &NamedNode<'_>) -> Result<bool, CallError> {
    if !node.node.is(c"MatMul")? || node.node.inputs()?.first().and_then(|rows| rows.rank()) != Some(4) {
        return Ok(false);
    }
    let Some(matrix) = node.input(1).map(|matrix| graph.graph.constant(matrix)).transpose()?.flatten() else {
        return Ok(false);
    };
    let sizes = matrix.sizes()?;
    let (&[rows, size], true) = (&*sizes, matrix.has_element(ElementType::Float32)) else { return Ok(false) };
    if rows != size || rotation_block(size).is_none() {
        return Ok(false);
    }
    let expected = |at: usize| rotation_element(size, at / size, at % size);
    Ok(matrix.floats::<f32>()?.iter().enumerate().all(|(at, element)| *element == expected(at)))
}
