//! An `Attention` node reads keys and values.

use super::super::site::AttentionOverCaches;
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};
use crate::onnx_attention::{KEYS, VALUES};

/// In rank 3 and 4, slots are the axis before the last.
pub(super) fn attended<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let [None, Some(State::Cache(keys)), Some(State::Cache(values)), rest @ ..] = reading.states.as_slice()
    else {
        return Ok(None);
    };
    let mut reads_slots = rest.iter().all(Option::is_none);
    for (slot, cache) in [(KEYS, keys), (VALUES, values)] {
        reads_slots &= cache.axis.saturating_add(2) == walk.rank(reading.input(slot))?;
    }
    let is_scaled =
        [keys, values].iter().any(|cache| cache.factors.links().is_none_or(|factors| !factors.is_empty()));
    let found = AttentionOverCaches { node: *reading.node, pasts: [keys.past, values.past], is_scaled };
    if reads_slots {
        walk.sites.over_concat.push(found);
    }
    Ok(reads_slots.then_some(Next::WeightedSum))
}
