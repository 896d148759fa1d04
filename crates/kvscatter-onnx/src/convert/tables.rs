//! Finds tables that have no row for a position.

use crate::fold::{Fold, Value};
use crate::slice::SlicedAxis;
use crate::{Graph, Node};

/// A table with too few rows, and the node that reads it.
pub(super) struct ShortTable<'m> {
    pub(super) node: Node<'m>,
    /// The name of the table.
    pub(super) table: &'m str,
    pub(super) rows: usize,
}

/// Returns the first table that has no row for an index that a node reads in this evaluation.
///
/// An index or a table that cannot be evaluated is left out. The rows of a table need not be known, because it may be
/// too large to be evaluated.
pub(super) fn first_short_table<'m>(graph: &Graph<'m>, fold: &mut Fold<'m>) -> Option<ShortTable<'m>> {
    graph.nodes().iter().find_map(|node| {
        if node.is("Slice") {
            return short_slice(graph, node, fold);
        }
        let (table, axis, indices) = match () {
            () if node.is("Gather") => (0, node.attribute("axis").and_then(|axis| axis.i).unwrap_or(0), 1),
            () if node.is("RotaryEmbedding") => (1, 0, 3),
            () => return None,
        };
        let (table, indices) = (node.input(table)?, node.input(indices)?);
        let largest = *fold.known(indices).ok()??.as_ints()?.iter().max()?;
        let shape = |value: &Value| value.shape.clone();
        let shape = fold.known(table).ok()?.map(shape)?;
        let rows = *shape.get(usize::try_from(axis).ok()?)?;
        // Without positions, the table of `RotaryEmbedding` has a row for each token, and one more axis.
        let is_table = node.is("Gather") || shape.len() == 2;
        let is_short = usize::try_from(largest).is_ok_and(|largest| largest >= rows);
        (is_table && is_short).then_some(ShortTable { node: *node, table, rows })
    })
}

/// Returns the table that a node slices, if the slice ends after its last row. An end of 2^31 - 1 or more means all
/// rows.
fn short_slice<'m>(graph: &Graph<'m>, node: &Node<'m>, fold: &mut Fold<'m>) -> Option<ShortTable<'m>> {
    const ALL: i64 = 0x7FFF_FFFF;
    let table = node.input(0).filter(|table| graph.is_constant(table))?;
    node.input(1).filter(|start| !graph.is_constant(start))?;
    let axes = node.sliced_axes(|bound| fold.ints(bound))?;
    let &[SlicedAxis { axis: 0, start: Some(1..), end: Some(end @ ..ALL), .. }] = axes.as_slice() else {
        return None;
    };
    let rows = *fold.shape(table).ok().filter(|shape| shape.len() == 2)?.first()?;
    (end > i64::try_from(rows).ok()?).then_some(ShortTable { node: *node, table, rows })
}
