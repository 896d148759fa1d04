//! Finds a `Slice` that drops rows of a cache.

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
    let has_one_axis = ints(graph, slice, "starts", 1).is_some_and(|starts| starts.len() == 1);
    slice.is("Slice") && has_one_axis && kept(graph, slice, axis, rank) == Some(Some(rows))
}

/// Returns `None` for a `Slice` of another axis or of all rows.
fn kept(graph: &Graph<'_>, slice: &Node<'_>, axis: usize, rank: usize) -> Option<Option<usize>> {
    let ints = |name, slot| ints(graph, slice, name, slot);
    let has_axes = slice.input(3).is_some() || slice.attribute("axes").is_some();
    let axes = match has_axes {
        true => ints("axes", 3),
        false => ints("starts", 1).map(|starts| (0..).take(starts.len()).collect()),
    };
    let Some(axes) = axes else { return Some(None) };
    let from_front =
        |axis: i64| if axis < 0 { axis.checked_add_unsigned(rank.try_into().ok()?) } else { Some(axis) };
    let is_cut = |&of: &i64| from_front(of).and_then(|of| usize::try_from(of).ok()) == Some(axis);
    let at = axes.iter().position(is_cut)?;
    let number = |name, slot| ints(name, slot).and_then(|ints| ints.get(at).copied());
    let step = if slice.input(4).is_some() { number("steps", 4) } else { Some(1) };
    match (number("starts", 1), number("ends", 2), step) {
        (Some(0), Some(OPEN_END..), Some(1)) => None,
        (Some(start @ ..0), Some(OPEN_END..), Some(1)) => Some(usize::try_from(start.unsigned_abs()).ok()),
        _ => Some(None),
    }
}

/// Returns numbers of a `Slice`. Before operator set 10, attributes had them.
fn ints(graph: &Graph<'_>, slice: &Node<'_>, name: &str, slot: usize) -> Option<Vec<i64>> {
    match slice.attribute(name) {
        Some(attribute) => Some(attribute.ints.clone()),
        None => graph.ints(slice.input(slot)?),
    }
}
