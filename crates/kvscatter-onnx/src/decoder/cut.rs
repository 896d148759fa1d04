//! Finds a `Slice` that drops rows of a cache.

use crate::slice::SlicedAxis;
use crate::{Graph, Node};

/// The least end of a `Slice` to the last row. Exporters write the largest number of 32 or 64 bits.
const OPEN_END: i64 = 0x7fff_ffff;

/// Returns `Some` if one of these nodes drops rows, with the number of last rows that it keeps if the graph shows it.
///
/// `steps` lead from the past to the present, and `axis` is the sequence dimension of the past, which has this rank.
pub(super) fn rows(graph: &Graph<'_>, steps: &[Node<'_>], axis: usize, rank: usize) -> Option<Option<usize>> {
    let mut axis = axis;
    for node in steps {
        match node.op_type() {
            "Transpose" => {
                let perm = &node.attribute("perm")?.ints;
                axis = perm.iter().position(|&from| usize::try_from(from) == Ok(axis))?;
            }
            "Slice" => {
                if let Some(kept) = kept(graph, node, axis, rank) {
                    return Some(kept);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns `true` if a `Slice` keeps this number of last rows, and all of the other axes.
pub(super) fn keeps_last(graph: &Graph<'_>, slice: &Node<'_>, rows: usize, axis: usize, rank: usize) -> bool {
    let has_one_axis = || slice.sliced_axes(|bound| graph.ints(bound)).is_some_and(|axes| axes.len() == 1);
    slice.is("Slice") && has_one_axis() && kept(graph, slice, axis, rank) == Some(Some(rows))
}

/// Returns `None` for a `Slice` of another axis or of all rows.
fn kept(graph: &Graph<'_>, slice: &Node<'_>, axis: usize, rank: usize) -> Option<Option<usize>> {
    let Some(axes) = slice.sliced_axes(|bound| graph.ints(bound)) else { return Some(None) };
    let from_front =
        |axis: i64| if axis < 0 { axis.checked_add_unsigned(rank.try_into().ok()?) } else { Some(axis) };
    let is_cut = |of: &SlicedAxis| from_front(of.axis).and_then(|of| usize::try_from(of).ok()) == Some(axis);
    match axes.into_iter().find(is_cut)? {
        SlicedAxis { start: Some(0), end: Some(OPEN_END..), step: Some(1), .. } => None,
        SlicedAxis { start: Some(start @ ..0), end: Some(OPEN_END..), step: Some(1), .. } => {
            Some(usize::try_from(start.unsigned_abs()).ok())
        }
        _ => Some(None),
    }
}
