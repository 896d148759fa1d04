//! Queries are multiplied with keys, and weights with values.

use super::super::site::{Scores, WeightedSum};
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};

pub(super) fn of_keys<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(State::Cache(keys)) = reading.only(1) else { return Ok(None) };
    let is_over_slots = walk.rank(reading.input(1))? == keys.axis.saturating_add(1);
    let scores = Scores::new(keys.clone(), *reading.node);
    Ok(is_over_slots.then_some(Next::State(State::Scores(scores))))
}

pub(super) fn of_values<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let (Some(State::Weights { site, factors }), Some(State::Cache(values))) =
        (reading.state(0), reading.state(1))
    else {
        return Ok(None);
    };
    if walk.rank(reading.input(1))? != values.axis.saturating_add(2) {
        return Ok(None);
    }
    let (factors, values) = (factors.clone(), values.clone());
    walk.sites.ends.push(WeightedSum { node: *reading.node, site: *site, factors, values });
    Ok(Some(Next::WeightedSum))
}
