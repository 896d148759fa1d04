//! Keys and values are computed from the rows of a latent cache, each from the row of the same slot.
//!
//! An unused slot contains zeros, or a row that a step wrote. From zeros these nodes compute finite numbers, and a mask
//! hides those of every unused slot. A node that divides by what it reads does not.

use super::super::site::CacheRead;
use super::super::walk::{NextOrNone, Reading, State, Walk};
use crate::fold;
use crate::passing::{is_norm, is_projection};

/// Rows are multiplied with constant weights.
pub(super) fn projected<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Cache(cache)) = reading.only(0) else { return Ok(None) };
    let has_rows = walk.rank(reading.input(0))? == cache.axis.saturating_add(2);
    if !has_rows || !is_projection(walk.graph, reading.node, 0) {
        return Ok(None);
    }
    walk.moved(reading.node, State::Cache(cache.part()))
}

/// The same constant is added to all rows.
pub(super) fn biased<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(slot) = reading.slot_of_only() else { return Ok(None) };
    let Some(State::Cache(cache)) = reading.state(slot) else { return Ok(None) };
    if !walk.graph.is_constant(reading.other(slot)) || walk.spans_slots(reading.other(slot))? {
        return Ok(None);
    }
    walk.moved(reading.node, State::Cache(cache.part()))
}

/// Each row is normalised, with an epsilon that keeps a row of zeros finite.
pub(super) fn normalised<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Cache(cache)) = reading.only(0) else { return Ok(None) };
    let rank = walk.rank(reading.input(0))?;
    let axis = fold::axis(reading.node.int("axis")?.unwrap_or(-1), rank)?;
    let epsilon = reading.node.float("epsilon")?.unwrap_or(1e-5);
    let has_constants =
        reading.node.inputs().skip(1).flatten().all(|constant| walk.graph.is_constant(constant));
    if !is_norm(reading.node) || axis <= cache.axis || epsilon <= 0.0 || !has_constants {
        return Ok(None);
    }
    walk.moved(reading.node, State::Cache(cache.part()))
}

/// Rows of several caches, or parts of rows, are put next to each other.
pub(super) fn joined<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let mut caches = reading.states.iter().map(|state| match state {
        Some(State::Cache(cache)) => Some(cache),
        _ => None,
    });
    let Some(Some(first)) = caches.next() else { return Ok(None) };
    let have_slots_there =
        |cache: Option<&CacheRead<'m>>| cache.is_some_and(|cache| cache.axis == first.axis);
    if !caches.all(have_slots_there) {
        return Ok(None);
    }
    // Slots that follow each other would be more than the slots of a cache.
    walk.moved(reading.node, State::Cache(first.part()))
}
