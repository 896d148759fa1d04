//! A sink takes a part of the weights.

use super::super::site::{Chain, Scores};
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};
use crate::OnnxError;

pub(super) fn appended<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Scores(scores)) = reading.only(0) else { return Ok(None) };
    let (sink, total) = (reading.input(1), walk.probe.total().saturating_add(1));
    let appends_one = walk.is_per_row(sink)? && walk.fold.shape(reading.output())?.last() == Some(&total);
    let with_sink = State::WithSink(Scores { sink: Some(sink), ..scores.clone() });
    Ok((appends_one && !scores.masks.is_empty()).then_some(Next::State(with_sink)))
}

/// A softmax does not change if a number is subtracted from all scores of a row.
pub(super) fn subtracted<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(state @ State::WithSink(_)) = reading.only(0) else { return Ok(None) };
    if reading.node.is("ReduceMax") {
        return Ok(walk.is_per_row(reading.output())?.then_some(Next::WeightedSum));
    }
    Ok(walk.is_per_row(reading.input(1))?.then(|| Next::State(state.clone())))
}

/// A `Slice` keeps the weights of all slots.
pub(super) fn dropped<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(&State::WeightsWithSink { site }) = reading.state(0) else { return Ok(None) };
    let mut ints = |slot: usize| match reading.node.input(slot) {
        None => Ok(None),
        Some(name) => Ok::<_, OnnxError>(walk.fold.value(name)?.as_ints().map(<[i64]>::to_vec)),
    };
    let (starts, steps) = (ints(1)?, ints(4)?);
    let is_first = starts.is_some_and(|starts| starts.iter().all(|&start| start == 0));
    let is_dense = steps.is_none_or(|steps| steps.iter().all(|&step| step == 1));
    let mut expected = walk.fold.shape(reading.input(0))?.to_vec();
    expected.last_mut().into_iter().for_each(|last| *last = walk.probe.total());
    let keeps_slots = is_first && is_dense && walk.fold.shape(reading.output())? == expected;
    Ok(keeps_slots.then(|| Next::State(State::Weights { site, factors: Chain::default() })))
}
