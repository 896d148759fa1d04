//! Scores are masked.

use super::super::site::{Form, Mask, MaskKind, Scores, ScoresLayout, ZeroAddition};
use super::super::walk::{Next, NextOrNone, Reading, State, Walk};
use crate::convert::refusal::ConvertRefusal;
use crate::fold::Value;
use crate::{Node, OnnxError};

/// The maximum number of masks in a row that are followed. Exporters use three: a causal mask, one for
/// padding and one for a window.
const MAX_MASKS: usize = 16;

/// A mask, zeros or a number for each row are added.
pub(super) fn added<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(slot) = reading.slot_of_only() else { return Ok(None) };
    let Some(State::Scores(scores)) = reading.state(slot) else { return Ok(None) };
    let (value, operand) = (reading.input(slot), reading.other(slot));
    if !walk.spans_slots(operand)? {
        return match scores.masks.is_empty() {
            true => walk.moved(reading.node, State::Scores(scores.with(Form::Added))),
            false => walk.decline("a number is added to masked scores"),
        };
    }
    let added = walk.fold.value(operand)?.as_floats();
    let is_zero = added.is_some_and(|added| added.iter().all(|&added| added == 0.0));
    if is_zero && !matches!(walk.layout(value)?, Some(ScoresLayout::Separate { .. })) {
        walk.sites.neutral.push(ZeroAddition { node: *reading.node, scores: value, operand });
        return Ok(Some(Next::State(State::Scores(scores.clone()))));
    }
    masked(walk, reading, scores, value, MaskKind::Add { operand })
}

/// A condition chooses between scores and a filler.
pub(super) fn replaced<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let [condition, first, second] = [0, 1, 2].map(|slot| reading.input(slot));
    match reading.slot_of_only().and_then(|slot| Some((slot, reading.state(slot)?))) {
        Some((1, State::Scores(scores))) => {
            let kind = MaskKind::Where { condition, filler: second, visible_where: true };
            masked(walk, reading, scores, first, kind)
        }
        Some((2, State::Scores(scores))) => {
            let kind = MaskKind::Where { condition, filler: first, visible_where: false };
            masked(walk, reading, scores, second, kind)
        }
        _ => Ok(None),
    }
}

/// Masked scores are limited from below.
pub(super) fn floored<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let Some(slot) = reading.slot_of_only() else { return Ok(None) };
    match reading.state(slot) {
        Some(State::Scores(scores)) if !scores.masks.is_empty() => {
            masked(walk, reading, scores, reading.input(slot), MaskKind::Floor { floor: reading.other(slot) })
        }
        _ => Ok(None),
    }
}

/// Returns the state of scores after one more mask.
fn masked<'m>(
    walk: &mut Walk<'_, 'm>,
    reading: &Reading<'_, 'm>,
    before: &Scores<'m>,
    scores: &'m str,
    kind: MaskKind<'m>,
) -> NextOrNone<'m> {
    if before.masks.len() >= MAX_MASKS {
        return walk.decline("more than 16 masks follow each other");
    }
    let after = after_mask(walk, reading.node, before, kind, [scores, reading.output()])?;
    Ok(Some(Next::State(State::Scores(after))))
}

/// Returns scores after one more mask, with the names of the scores before and after it.
pub(super) fn after_mask<'m>(
    walk: &mut Walk<'_, 'm>,
    node: &Node<'m>,
    before: &Scores<'m>,
    kind: MaskKind<'m>,
    [scores, output]: [&'m str; 2],
) -> Result<Scores<'m>, OnnxError> {
    let Some(layout) = walk.layout(scores)? else {
        return Err(ConvertRefusal::ScoresShape { rank: walk.rank(scores)? }.into());
    };
    let Value { element, .. } = *walk.fold.value(scores)?;
    let mut after = before.with(Form::Mask(before.masks.len()));
    after.masks.push(Mask { node: *node, kind, scores, output, layout, element, is_scaled: false });
    Ok(after)
}
