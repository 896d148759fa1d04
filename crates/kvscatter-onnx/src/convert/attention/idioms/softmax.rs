//! A softmax makes weights of scores.

use super::super::site::{Chain, MaskKind, Site};
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};
use super::masks;
use crate::convert::refusal::ConvertRefusal;

pub(super) fn weighted<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Scores(scores) | State::WithSink(scores)) = reading.only(0) else { return Ok(None) };
    if !walk.is_over_last(reading.node)? {
        return walk.decline("this softmax is not over the slots");
    }
    let mut scores = scores.clone();
    if scores.masks.is_empty() {
        if walk.probe.new != 1 || scores.sink.is_some() {
            return Err(ConvertRefusal::Unmasked.into());
        }
        let names = [reading.input(0); 2];
        scores = masks::after_mask(walk, reading.node, &scores, MaskKind::Absent, names)?;
    }
    let is_over_slots = walk.fold.shape(reading.output())?.last() == Some(&walk.probe.total());
    if scores.sink.is_none() && !is_over_slots {
        return Ok(None);
    }
    let site = walk.sites.sites.len();
    let has_sink = scores.sink.is_some();
    walk.sites.sites.push(Site::new(scores, *reading.node));
    Ok(Some(Next::State(match has_sink {
        true => State::WeightsWithSink { site },
        false => State::Weights { site, factors: Chain::default() },
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
