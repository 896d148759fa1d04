//! Scores are capped before they are masked.

use super::super::site::Form;
use super::super::walk::{NextOrNone, Reading, State, Walk};

pub(super) fn capped<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    match reading.only(0) {
        Some(State::Scores(scores)) if scores.masks.is_empty() => {
            walk.moved(reading.node, State::Scores(scores.with(Form::Cap)))
        }
        _ => Ok(None),
    }
}
