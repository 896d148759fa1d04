//! A softmax makes weights of scores.

use super::super::site::{Chain, Site};
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};
use crate::convert::refusal::ConvertRefusal;

pub(super) fn weighted<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Scores(scores) | State::WithSink(scores)) = reading.only(0) else { return Ok(None) };
    if !walk.is_over_last(reading.node)? {
        return walk.decline("this softmax is not over the slots");
    }
    if scores.masks.is_empty() {
        return Err(ConvertRefusal::Unmasked.into());
    }
    let is_over_slots = walk.fold.shape(reading.output())?.last() == Some(&walk.probe.total());
    if scores.sink.is_none() && !is_over_slots {
        return Ok(None);
    }
    let site = walk.sites.sites.len();
    walk.sites.sites.push(Site::new(scores.clone(), *reading.node));
    Ok(Some(Next::State(match scores.sink {
        Some(_) => State::WeightsWithSink { site },
        None => State::Weights { site, factors: Chain::default() },
    })))
}

/// The weights of a row without visible slots are not numbers. Exporters replace them.
pub(super) fn cleared<'m>(_: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    use State::{Flags, Weights};
    let node = reading.node;
    Ok(match reading.states.as_slice() {
        [Some(Weights { .. })] if node.is("IsNaN") => Some(Next::State(Flags)),
        [Some(Flags)] if node.is("Not") => Some(Next::State(Flags)),
        [Some(Flags), None, Some(weights @ Weights { .. })]
        | [Some(Flags), Some(weights @ Weights { .. }), None]
            if node.is("Where") =>
        {
            Some(Next::State(weights.clone()))
        }
        _ => None,
    })
}
