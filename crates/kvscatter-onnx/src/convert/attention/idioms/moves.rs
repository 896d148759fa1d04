//! Elements are moved, repeated, cast or split.

use super::super::site::CacheRead;
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};
use crate::{Node, OnnxError};

pub(super) fn moved<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let (node, Some(state)) = (reading.node, reading.only(0)) else { return Ok(None) };
    let is_cast = node.is("Cast");
    let keeps = match state {
        State::Scores(scores) => !is_cast || walk.keeps_hidden(node, &scores.masks)?,
        State::Cache(cache) if node.is("Reshape") || node.is("Flatten") => !is_regrouped(walk, node, cache)?,
        State::Cache(_) | State::Weights { .. } | State::Flags => true,
        // The shape is that of the scores and one more.
        State::WithSink(scores) if is_cast && walk.keeps_hidden(node, &scores.masks)? => {
            return Ok(Some(Next::State(state.clone())));
        }
        State::WeightsWithSink { .. } if is_cast => return Ok(Some(Next::State(state.clone()))),
        State::WithSink(_) | State::WeightsWithSink { .. } => false,
    };
    match state {
        _ if keeps => walk.moved(node, state.clone()),
        State::Scores(_) => walk.decline("hidden scores are not finite after this cast"),
        _ => walk.decline("this node changes the order of the slots"),
    }
}

/// Returns `true` if a reshape changes what follows the axis of the slots.
///
/// If the number of elements after that axis changes, the slots do not keep their order.
fn is_regrouped<'m>(
    walk: &mut Walk<'_, 'm>,
    node: &Node<'m>,
    cache: &CacheRead<'m>,
) -> Result<bool, OnnxError> {
    let total = walk.probe.total();
    let elements_after = |shape: &[usize], axis: usize| shape.iter().skip(axis).skip(1).product::<usize>();
    let before = elements_after(walk.fold.shape(node.input(0).unwrap_or_default())?, cache.axis);
    let shape = walk.fold.shape(node.output(0).unwrap_or_default())?;
    let moved = shape.iter().position(|&size| size == total);
    Ok(moved.is_none_or(|axis| elements_after(shape, axis) != before))
}

/// Keys and values are in one cache.
pub(super) fn split<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Cache(cache)) = reading.only(0) else { return Ok(None) };
    for output in reading.node.outputs() {
        if walk.fold.shape(output)?.get(cache.axis) != Some(&walk.probe.total()) {
            return Ok(None);
        }
    }
    Ok(Some(Next::States(State::Cache(cache.part()))))
}
