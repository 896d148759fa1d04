//! A softmax makes weights of scores.

use super::super::site::{Chain, Site};
use super::super::walk::{Found, Next, Reading, State, Walk};
use crate::convert::refusal::ConvertRefusal;

pub(super) fn weighted<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> Found<'m> {
    let Some(State::Scores(scores) | State::Sunk(scores)) = reading.only(0) else { return Ok(None) };
    if !walk.is_over_last(reading.node)? {
        return Ok(None);
    }
    if scores.masks.is_empty() {
        return Err(ConvertRefusal::Unmasked.into());
    }
    let site = walk.sites.sites.len();
    walk.sites.sites.push(Site::new(scores.clone(), *reading.node));
    if scores.sink.is_some() {
        return Ok(Some(Next::State(State::SunkWeights { site })));
    }
    let is_over_slots = walk.fold.shape(reading.output())?.last() == Some(&walk.probe.total());
    Ok(is_over_slots.then(|| Next::State(State::Weights { site, factors: Chain::default() })))
}

/// The weights of a row without visible slots are not numbers. Exporters replace them.
pub(super) fn cleared<'m>(_: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> Found<'m> {
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
