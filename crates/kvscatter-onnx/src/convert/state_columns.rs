//! The pass that returns the columns of convolutions, so that a sample can go back to any of its last tokens.
//!
//! The state after a step has only its last columns. With those of the past and of all new tokens, a caller has the
//! state after each token. Recurrent states have no such columns. If a model has one, a sample must run its tokens
//! again in any case, and the pass changes nothing. It changes nothing either if the outputs would not have one column
//! for each new token, which it evaluates.

use super::metadata;
use super::pass::{Change, Subject};
use super::report::KeptState;
use crate::decoder::{COLUMNS, Decoder, NewColumns, State};
use crate::edit::{Editor, NewNode};
use crate::{Dimension, Model, OnnxError};

/// The name of an output with columns: that of the state, and this.
const SUFFIX: &str = ".columns";

/// Adds the outputs, unless the decoder has them.
pub(super) fn return_columns(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, decoder, .. } = *subject;
    let states = decoder.states.iter().map(|state| Some((state, state.new?)));
    let Some(states) = states.collect::<Option<Vec<_>>>() else { return Ok(None) };
    if states.iter().all(|(state, _)| state.columns.is_some()) {
        return Ok(None);
    }
    let mut returning = model.clone();
    let mut editor = Editor::new(returning.proto_mut())?;
    let returned = |(state, new): &(&State<'_>, NewColumns<'_>)| KeptState {
        past: state.past.to_owned(),
        present: state.present.to_owned(),
        columns: Some(add(state, *new, &mut editor)),
    };
    let states: Vec<_> = states.iter().map(returned).collect();
    let origins = editor.finish()?;
    if !is_returned(subject, &returning, &states) {
        return Ok(None);
    }
    metadata::write_columns(&states, returning.proto_mut());
    let change = Change::new(returning, origins).what(format!("outputs of {} convolutions", states.len()));
    let proof = "that a state is its last columns, and the sizes of two steps";
    Ok(Some(Change { states: Some(states), ..change }.proof(proof)))
}

/// Returns `true` if the changed decoder has these outputs, each for its state, and they have one column for each token
/// of a step. Columns that are padded, repeated or cut before they follow the past contain no state after each token.
fn is_returned(subject: &Subject<'_, '_>, model: &Model, returned: &[KeptState]) -> bool {
    let Ok(graph) = &model.graph() else { return false };
    let Ok(decoder) = &Decoder::from_graph(graph) else { return false };
    let states = decoder.states.iter().map(|state| state.columns);
    if !states.eq(returned.iter().map(|state| state.columns.as_deref())) {
        return false;
    }
    let changed = Subject { model, graph, decoder, ..*subject };
    let sizes = decoder.states.iter().filter_map(|state| state.shape.get(COLUMNS)?.size());
    // With more tokens than a state has columns, no graph needs all of them for its next state.
    let many = sizes.max().unwrap_or_default().saturating_add(2);
    [1, many].into_iter().all(|new| {
        let Ok((mut step, new)) = changed.step_of(new) else { return false };
        decoder.states.iter().all(|state| {
            let Ok(mut expected) = step.shape(state.past).map(<[usize]>::to_vec) else { return false };
            expected.last_mut().into_iter().for_each(|columns| *columns = columns.saturating_add(new));
            let columns = state.columns.and_then(|columns| step.known(columns).ok()?);
            columns.is_some_and(|columns| columns.element == state.element && columns.shape == expected)
        })
    })
}

/// Returns the name of the output with the columns of a state, and adds it if it is missing.
fn add(state: &State<'_>, new: NewColumns<'_>, editor: &mut Editor<'_>) -> String {
    if let Some(columns) = state.columns {
        return columns.to_owned();
    }
    let columns = editor.fresh(&format!("{}{SUFFIX}", state.present));
    editor.at(state.writer.index());
    let node = |past: &str, new: &str| NewNode::new("Concat", &[past, new]).int("axis", -1);
    match new {
        NewColumns::OfOperator(new) => _ = editor.add(node(state.past, new).outputs(&[&columns])),
        NewColumns::Joined(joined) => {
            let inputs = [0, 1].map(|slot| state.writer.input(slot).unwrap_or_default());
            editor.replacing(state.writer.index());
            editor.add(node(inputs[0], inputs[1]).outputs(&[&columns]));
            editor.replace_uses(joined, &columns);
        }
    }
    let [batch, channels] = [0, 1].map(|axis| state.shape.get(axis).copied().unwrap_or(Dimension::Unknown));
    editor.add_output(&columns, state.element, &[batch, channels, Dimension::Unknown]);
    columns
}
