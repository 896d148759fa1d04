//! Replaces values that a decoder computes from the length of its past, other than masks. These values are
//! positions of new tokens, and shapes.
//!
//! In an exported decoder the length is a single number, the size of a dimension of the past. In a static
//! cache each sample has a separate length.

use std::collections::BTreeSet;

use kvscatter::ElementType;

use super::exported::Lane;
use super::probe::Probe;
use crate::fold::{Fold, Value, Values, signed};
use crate::slice::SlicedAxis;
use crate::{Graph, Node};

/// A value of the exported graph, and how the converted graph computes it instead.
#[derive(Clone, Copy, Debug)]
pub(super) enum LengthReplacement<'m> {
    /// The number of all tokens, which becomes the number of slots.
    Total { value: &'m str, element: ElementType, rank: usize },
    /// The position of each new token, `past + i + offset`, `[1 or batch, new]`, which becomes
    /// `write_indices[b] + i + offset`.
    Positions { value: &'m str, element: ElementType, offset: i64 },
    /// The number of cached tokens, a single number that is only added to numbers of the new tokens, `[batch, new]`. It
    /// becomes `write_indices`, `[batch, 1]`.
    Past { value: &'m str, element: ElementType },
    /// The columns of the new tokens in a value `[batch, past + new]` that is computed from the attention
    /// mask.
    Columns { value: &'m str, of: &'m str },
    /// The rows of a table for the positions of the new tokens, `[new, width]`, which are added to the tokens. They
    /// become rows for each sample, `[batch, new, width]`.
    Rows { value: &'m str, table: &'m str, by: RowsBy<'m> },
}

/// How the rows for positions are picked from a table.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowsBy<'m> {
    /// `Gather` picks the rows of these positions.
    Positions(&'m str),
    /// `Slice` cuts out the rows from the length of the past on.
    Slice(Node<'m>),
}

/// Returns every replacement that fits its value on all probes.
pub(super) fn replacements<'m>(graph: &Graph<'m>, lanes: &mut [Lane<'m>]) -> Vec<LengthReplacement<'m>> {
    let Some((first, others)) = lanes.split_first_mut() else { return Vec::new() };
    let mut replacements = all(graph, &first.probe, &mut first.fold);
    for lane in others {
        replacements.retain(|replacement| replacement.holds(graph, &lane.probe, &mut lane.fold));
    }
    // Positions that are computed from replaced ones need no replacement.
    let positions: BTreeSet<_> = replacements.iter().filter_map(LengthReplacement::positions).collect();
    replacements.retain(|replacement| match *replacement {
        LengthReplacement::Positions { value, offset, .. } if offset != 0 => {
            let producer = graph.producer(value);
            !producer.is_some_and(|(node, _)| node.inputs().flatten().any(|input| positions.contains(input)))
        }
        _ => true,
    });
    replacements
}

/// Returns every replacement that fits a value on one probe.
fn all<'m>(graph: &Graph<'m>, probe: &Probe, fold: &mut Fold<'m>) -> Vec<LengthReplacement<'m>> {
    let mut replacements = Vec::new();
    for node in graph.nodes() {
        for value in node.proto().output.iter().map(String::as_str).filter(|name| !name.is_empty()) {
            // A value that cannot be evaluated needs no replacement.
            let Ok(Value { element, shape, data: Some(Values::Ints(_)) }) = fold.value(value) else {
                continue;
            };
            let (element, rank) = (*element, shape.len());
            let total = LengthReplacement::Total { value, element, rank };
            let first = fold.value(value).ok().and_then(|value| value.as_ints()?.first().copied());
            let positions = first.map(|first| {
                let offset = first.saturating_sub(signed(probe.past));
                LengthReplacement::Positions { value, element, offset }
            });
            let past = LengthReplacement::Past { value, element };
            let columns = node.input(0).map(|of| LengthReplacement::Columns { value, of });
            // If several replacements fit a value on all probes, the first is used.
            replacements.extend(
                [Some(total), positions, Some(past), columns]
                    .into_iter()
                    .flatten()
                    .filter(|it| it.holds(graph, probe, fold)),
            );
        }
    }
    replacements.extend(graph.nodes().iter().filter_map(|node| added_rows(graph, node, probe, fold)));
    replacements
}

/// Returns the rows of a table that a node picks, if other nodes only add them to values of all new tokens.
fn added_rows<'m>(
    graph: &Graph<'m>,
    node: &Node<'m>,
    probe: &Probe,
    fold: &mut Fold<'m>,
) -> Option<LengthReplacement<'m>> {
    let axis = node.attribute("axis").and_then(|axis| axis.i).unwrap_or(0);
    let (value, table) = (node.output(0)?, node.input(0)?);
    let by = match () {
        () if node.is("Gather") && axis == 0 => RowsBy::Positions(node.input(1)?),
        () if node.is("Slice") => RowsBy::Slice(*node),
        () => return None,
    };
    if !graph.is_constant(table) {
        return None;
    }
    let shape = fold.shape(value).ok()?.to_vec();
    let &[new, width] = shape.as_slice() else { return None };
    let rows = LengthReplacement::Rows { value, table, by };
    let is_added = is_added(graph, value, &[probe.batch, new, width], fold);
    (is_added && rows.holds(graph, probe, fold)).then_some(rows)
}

/// Returns `true` if nodes read a value, and all of them add it to values of this shape.
fn is_added(graph: &Graph<'_>, value: &str, shape: &[usize], fold: &mut Fold<'_>) -> bool {
    let mut uses = graph.uses(value).peekable();
    let is_used = uses.peek().is_some();
    is_used
        && uses.all(|(user, slot)| {
            let other = slot.and_then(|slot| user.input(usize::from(slot == 0)));
            let sum = other.and_then(|other| fold.shape(other).ok());
            let adds = user.is("Add") || user.op_type() == "SkipLayerNormalization";
            adds && sum.is_some_and(|sum| *sum == *shape)
        })
}

impl<'m> LengthReplacement<'m> {
    /// Returns the value, if it contains positions.
    fn positions(&self) -> Option<&'m str> {
        match *self {
            Self::Positions { value, .. } => Some(value),
            _ => None,
        }
    }

    fn holds(&self, graph: &Graph<'_>, probe: &Probe, fold: &mut Fold<'_>) -> bool {
        match *self {
            Self::Total { value, .. } => is_number(value, probe.total(), fold),
            Self::Past { value, .. } => {
                is_number(value, probe.past, fold) && is_added(graph, value, &[probe.batch, probe.new], fold)
            }
            Self::Positions { value, offset, .. } => {
                fold.value(value).is_ok_and(|value| is_positions(value, probe, offset))
            }
            Self::Columns { value, of } => {
                // Values of other shapes are skipped, because they may be large and many values may be
                // computed from them.
                let is_mask = fold.shape(of).is_ok_and(|shape| *shape == [probe.batch, probe.total()]);
                let Some(of) = is_mask.then(|| fold.value(of).cloned().ok()).flatten() else { return false };
                fold.value(value).is_ok_and(|value| is_columns(value, &of, probe))
            }
            Self::Rows { by: RowsBy::Slice(slice), value, .. } => {
                let axes = slice.sliced_axes(|bound| fold.ints(bound));
                let Some([SlicedAxis { axis: 0, start: Some(start), step: Some(1), .. }]) = axes.as_deref()
                else {
                    return false;
                };
                *start == signed(probe.past)
                    && fold.shape(value).is_ok_and(|shape| shape.first() == Some(&probe.new))
            }
            Self::Rows { by: RowsBy::Positions(positions), .. } => {
                fold.value(positions).is_ok_and(|positions| {
                    let expected = (probe.past..probe.total()).map(|place| i64::try_from(place).ok());
                    let ints = positions.as_ints().filter(|_| *positions.shape == [probe.new]);
                    ints.is_some_and(|ints| ints.iter().copied().map(Some).eq(expected))
                })
            }
        }
    }
}

/// Returns `true` if a value contains this number alone.
fn is_number(value: &str, number: usize, fold: &mut Fold<'_>) -> bool {
    fold.value(value).is_ok_and(|value| value.as_ints() == Some(&[signed(number)]))
}

fn is_positions(value: &Value, probe: &Probe, offset: i64) -> bool {
    let Some(ints) = value.as_ints() else { return false };
    let rows = match *value.shape {
        [rows, new] if new == probe.new && (rows == 1 || rows == probe.batch) => rows,
        _ => return false,
    };
    let row = probe.past..probe.total();
    let expected = std::iter::repeat_n(row, rows).flatten();
    expected.map(|place| signed(place).checked_add(offset)).eq(ints.iter().copied().map(Some))
}

/// Returns `true` if `value` contains the last columns of `of`, those of the new tokens.
fn is_columns(value: &Value, of: &Value, probe: &Probe) -> bool {
    let (Some(ints), Some(all)) = (value.as_ints(), of.as_ints()) else { return false };
    let total = probe.total();
    if *value.shape != [probe.batch, probe.new] || *of.shape != [probe.batch, total] || total == 0 {
        return false;
    }
    all.chunks(total).flat_map(|row| row.iter().skip(probe.past)).eq(ints)
}
