//! Decides which caches can be written in place, by a walk over the graph that moves no bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::evaluator::Evaluator;
use super::op::Op;
use super::report::{NotInPlace, Use};
use crate::{EvalError, NodeLabel, OnnxError, ValueInfo};

/// The buffer to write `present_cache` into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The buffer of `past_cache` if the graph allows it, and a new buffer otherwise.
    #[default]
    Auto,
    /// The buffer of `past_cache`. If a node cannot write there, the evaluation returns an error.
    InPlace,
    /// Always a new buffer.
    Functional,
}

/// A buffer during evaluation, which all names whose values are in it share.
struct PlannedBuffer {
    owner: Owner,
    /// The last node that reads a value in the buffer, and the name of that value.
    last_use: Option<(Reader, Arc<str>)>,
}

/// The owner of a buffer. Only the owner may change it.
enum Owner {
    Evaluation,
    Caller(Arc<str>),
    Model(Arc<str>),
}

/// A reader of a value. Nodes are ordered before the outputs of the graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    Node(usize),
    Output,
}

/// The nodes that write in place and the outputs that are copied.
pub(super) struct PlacementPlan {
    /// The reason why a node does not write in place. It is `None` for a node that does, and for other
    /// operators than `TensorScatter`.
    pub(super) reasons: Vec<Option<NotInPlace>>,
    /// Whether each output of the graph must be copied. This is necessary if its buffer belongs to the caller
    /// or the model, or already is an earlier output.
    pub(super) output_copies: Vec<bool>,
}

/// Decides the placement for a graph whose inputs all have values.
///
/// # Errors
/// Returns [`EvalError::NotInPlace`] wrapped in [`OnnxError::InNode`] if [`Placement::InPlace`] is requested
/// but not possible.
pub(super) fn place(
    evaluator: &Evaluator<'_>,
    is_donated: impl Fn(&str) -> Option<bool>,
    placement: Placement,
) -> Result<PlacementPlan, OnnxError> {
    let last_uses = last_uses(evaluator);
    let last_use = |name: &str| last_uses.get(name).map(|&reader| (reader, name.into()));
    let mut labels = BTreeMap::new();
    let mut buffers = Vec::new();
    let mut buffer_of = BTreeMap::new();
    for (name, owner) in given(evaluator, is_donated) {
        buffer_of.insert(name, buffers.len());
        buffers.push(PlannedBuffer { owner, last_use: last_use(name) });
    }
    let mut reasons = Vec::new();
    for (index, (node, op)) in evaluator.graph.nodes().iter().zip(&evaluator.ops).enumerate() {
        let mut reason = None;
        let source = match *op {
            Op::Constant { .. } => {
                reasons.push(None);
                continue;
            }
            Op::Add { .. } => None,
            Op::Identity { input, .. } => buffer_of.get(input).copied(),
            Op::TensorScatter { past_cache, update, .. } => {
                let past = buffer_of.get(past_cache).copied();
                reason = match past.and_then(|past| buffers.get(past)) {
                    _ if placement == Placement::Functional => Some(NotInPlace::Asked),
                    _ if past == buffer_of.get(update).copied() => Some(NotInPlace::IsUpdate),
                    Some(buffer) => obstacle(evaluator, buffer, index, &mut labels),
                    None => None,
                };
                past.filter(|_| reason.is_none())
            }
        };
        if let (Some(reason), Placement::InPlace) = (&reason, placement) {
            let reason = Box::new(reason.clone());
            return Err(node.error(EvalError::NotInPlace { reason }));
        }
        let last_use = last_use(op.output());
        let buffer = match source.and_then(|source| Some((source, buffers.get_mut(source)?))) {
            Some((source, buffer)) => {
                buffer.last_use = buffer.last_use.take().max(last_use);
                source
            }
            None => {
                buffers.push(PlannedBuffer { owner: Owner::Evaluation, last_use });
                buffers.len().saturating_sub(1)
            }
        };
        buffer_of.insert(op.output(), buffer);
        reasons.push(reason);
    }
    let buffer = |name: &str| buffer_of.get(name).and_then(|&index| Some((index, buffers.get(index)?)));
    let output_copies = output_copies(evaluator, buffer);
    Ok(PlacementPlan { reasons, output_copies })
}

/// Returns the values that no node produces, each with the owner of its buffer.
fn given<'m>(
    evaluator: &Evaluator<'m>,
    is_donated: impl Fn(&str) -> Option<bool>,
) -> impl Iterator<Item = (&'m str, Owner)> {
    let constants = evaluator.constants.keys().map(|&name| (name, Owner::Model(name.into())));
    // A fed input hides the initializer that is its default.
    let inputs = evaluator.inputs.iter().filter_map(move |input| {
        Some(match is_donated(input.name)? {
            true => (input.name, Owner::Evaluation),
            false => (input.name, Owner::Caller(input.name.into())),
        })
    });
    constants.chain(inputs)
}

/// Returns for every output whether it must be copied. A buffer of the evaluation can become only one output.
fn output_copies<'b>(
    evaluator: &Evaluator<'_>,
    buffer: impl Fn(&str) -> Option<(usize, &'b PlannedBuffer)>,
) -> Vec<bool> {
    let mut given_away = BTreeSet::new();
    let is_copy = |output: &ValueInfo<'_>| match buffer(output.name) {
        Some((index, PlannedBuffer { owner: Owner::Evaluation, .. })) => !given_away.insert(index),
        _ => true,
    };
    evaluator.outputs.iter().map(is_copy).collect()
}

/// Returns the reason why the node at `index` may not change a buffer that it reads, if there is one.
fn obstacle(
    evaluator: &Evaluator<'_>,
    buffer: &PlannedBuffer,
    index: usize,
    labels: &mut BTreeMap<usize, Arc<NodeLabel>>,
) -> Option<NotInPlace> {
    match &buffer.owner {
        Owner::Caller(input) => return Some(NotInPlace::NotDonated { input: input.clone() }),
        Owner::Model(name) => return Some(NotInPlace::Constant { name: name.clone() }),
        Owner::Evaluation => {}
    }
    let (reader, value) = buffer.last_use.as_ref().filter(|(reader, _)| *reader > Reader::Node(index))?;
    let node = match *reader {
        Reader::Node(index) => evaluator.graph.nodes().get(index).map(|node| (index, node)),
        Reader::Output => None,
    };
    let by = node.map_or(Use::GraphOutput, |(index, node)| {
        Use::Node(labels.entry(index).or_insert_with(|| Arc::new(node.label())).clone())
    });
    let value = value.clone();
    Some(NotInPlace::UsedLater { value, by })
}

fn last_uses<'m>(evaluator: &Evaluator<'m>) -> BTreeMap<&'m str, Reader> {
    let mut last = BTreeMap::new();
    for (index, op) in evaluator.ops.iter().enumerate() {
        last.extend(op.inputs().map(|name| (name, Reader::Node(index))));
    }
    last.extend(evaluator.outputs.iter().map(|output| (output.name, Reader::Output)));
    last
}
