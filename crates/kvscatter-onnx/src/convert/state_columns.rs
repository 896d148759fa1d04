//! The pass that returns the columns of convolutions, so that a sample can go back to any of its last tokens.
//!
//! The state after a step has only its last columns. With those of the past and of all new tokens, a caller has the
//! state after each token. Recurrent states have no such columns. If a model has one, a sample must run its tokens again
//! in any case, and the pass changes nothing.

use super::metadata;
use super::pass::{Change, Subject};
use super::report::KeptState;
use crate::decoder::{NewColumns, State};
use crate::edit::{Editor, NewNode};
use crate::{Dimension, OnnxError};

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
    metadata::write_columns(&states, returning.proto_mut());
    let change = Change::new(returning, origins).what(format!("outputs of {} convolutions", states.len()));
    let proof = "the definition of a convolution's state, which is its last columns";
    Ok(Some(Change { states: Some(states), ..change }.proof(proof)))
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
