//! Decides which role each input of a decoder has.
//!
//! An input has a role only if the graph proves it, or if it has the name that exporters give to inputs of the role.
//! Any other input stays [`InputRole::Other`], because wrong values for it would give wrong results without an error.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kvscatter::ElementType;

use super::cache::Cache;
use super::roles::{Input, InputRole, is_float, through, uses};
use super::rotary;
use super::shared_positions;
use super::shown::{self, SlotMask, Trial};
use super::state::State;
use super::trace::{MAX_STEPS, Path};
use super::trial::{Counts, MAX_TRIALS, TrialSetup};
use crate::fold::Budget;
use crate::onnx_attention::NONPAD_KV_SEQLEN;
use crate::passing::{Passing, keeps_elements};
use crate::{Dimension, Graph, Node, ValueInfo};

/// How a graph uses an input.
#[derive(Clone, Debug, Default)]
struct Evidence {
    /// The role that an operator gives to the input.
    role: Option<InputRole>,
    /// The number of rows of each table from which the input picks rows.
    tables: Vec<usize>,
    /// Whether the input picks single elements of a table.
    picks_elements: bool,
    /// Whether queries or keys are rotated by angles that are computed from the input.
    is_angle: bool,
}

impl Evidence {
    fn is_index(&self) -> bool {
        self.is_angle || self.picks_elements || !self.tables.is_empty()
    }
}

/// Assigns a role to every input. Each role except [`InputRole::Past`], [`InputRole::State`] and
/// [`InputRole::Other`] is given to at most one input, unless operators give it to several.
pub(super) fn assign<'m>(
    graph: &Graph<'m>,
    inputs: Vec<ValueInfo<'m>>,
    caches: &[Cache<'m>],
    states: &[State<'m>],
    logits: Option<&ValueInfo<'m>>,
) -> Vec<Input<'m>> {
    let caches_by_name = caches.iter().enumerate().map(|(at, cache)| (cache.past, InputRole::Past(at)));
    let states_by_name = states.iter().enumerate().map(|(at, state)| (state.past, InputRole::State(at)));
    let pasts: BTreeMap<_, _> = caches_by_name.chain(states_by_name).collect();
    let masks = shown::masks(graph, caches);
    let evidence = evidence(graph, &masks);
    let shared = shared_positions::find(graph, &inputs, caches, logits);
    let by_scatter = shared.map(|name| (name, InputRole::SharedPositions));
    let inputs = inputs.into_iter().map(|value| {
        let by_operator = evidence.get(value.name).and_then(|seen| seen.role).filter(|role| {
            // A mask of two dimensions may be of all tokens, or of each token and slot.
            *role != InputRole::AttentionMask || value.rank() != Some(2)
        });
        let by_scatter = by_scatter.filter(|&(name, _)| name == value.name).map(|(_, role)| role);
        let role = pasts.get(value.name).copied().or(by_scatter).or(by_operator).unwrap_or(InputRole::Other);
        Input { value, role }
    });
    let mut roles = Roles { inputs: inputs.collect(), evidence, none: Evidence::default() };

    // Names are checked first, so that no proof gives another role to an input with one of these names.
    for (role, name, fits) in NAMES {
        roles.give(role, |_, input, _| input.value.name == name && fits(&input.value));
    }
    let vocabulary = logits.and_then(|logits| logits.shape.as_ref()?.last()?.size());
    roles.give(InputRole::TokenIds, |_, input, seen| {
        let picks_token = vocabulary.is_some_and(|rows| seen.tables.contains(&rows));
        is_integer(&input.value) && !seen.is_angle && picks_token
    });
    roles.give(InputRole::PositionIds, |_, input, seen| is_integer(&input.value) && seen.is_angle);
    // Every decoder takes tokens. So if only one input picks rows, it has the tokens.
    roles.give(InputRole::TokenIds, |_, input, seen| {
        is_integer(&input.value) && !seen.is_angle && !seen.tables.is_empty()
    });
    // The states of an encoder have another length.
    let second = |value: &ValueInfo<'m>| value.shape.as_ref()?.get(1).copied();
    let tokens = logits.and_then(second).filter(|dim| *dim != Dimension::Unknown);
    roles.give(InputRole::Embeddings, |_, input, _| {
        is_vectors(&input.value) && tokens.is_some() && second(&input.value) == tokens
    });

    let (left, budget) = (Cell::new(MAX_TRIALS), Rc::new(Budget::new()));
    let setup = TrialSetup { graph, caches, states, logits, masks: &masks, left, budget };
    let written = caches.iter().filter(|cache| cache.is_static()).filter_map(|cache| cache.writer?.input(2));
    let lengths = graph
        .nodes()
        .iter()
        .filter(|node| node.is("Attention"))
        .filter_map(|node| node.input(NONPAD_KV_SEQLEN));
    for (role, values) in [
        (InputRole::WriteIndices, written.collect::<BTreeSet<_>>()),
        (InputRole::NonpadKvSeqlen, lengths.collect()),
    ] {
        roles.give(role, |inputs, input, _| {
            let passes_on =
                |trial: Trial<'_, '_>| values.iter().all(|value| trial.passes_on(input.value.name, value));
            is_per_sample(&input.value)
                && !values.is_empty()
                && setup.trial(inputs, input, Counts::Nothing).is_some_and(passes_on)
        });
    }
    roles.give(InputRole::PositionIds, |inputs, input, _| {
        is_integer(&input.value)
            && input.value.rank() == Some(2)
            && setup
                .trial(inputs, input, Counts::New)
                .is_some_and(|trial| trial.limits_slots(input.value.name))
    });
    roles.give(InputRole::AttentionMask, |inputs, input, seen| {
        is_by_slot(&input.value)
            && !seen.is_index()
            && setup
                .trial(inputs, input, Counts::Total)
                .is_some_and(|trial| trial.marks_real_tokens(input.value.name))
    });
    roles.inputs
}

/// A role, the name that exporters give to inputs of the role, and whether an input has a fitting type and shape.
type Name = (InputRole, &'static str, fn(&ValueInfo<'_>) -> bool);

const NAMES: [Name; 7] = [
    (InputRole::TokenIds, "input_ids", is_integer),
    (InputRole::Embeddings, "inputs_embeds", is_vectors),
    (InputRole::PositionIds, "position_ids", is_integer),
    (InputRole::AttentionMask, "attention_mask", is_by_slot),
    (InputRole::BlockIds, "block_sequence_ids", |value| is_integer(value) && is_by_slot(value)),
    (InputRole::WriteIndices, "write_indices", is_per_sample),
    (InputRole::NonpadKvSeqlen, "nonpad_kv_seqlen", is_per_sample),
];

/// The inputs with the roles that are known so far.
struct Roles<'m> {
    inputs: Vec<Input<'m>>,
    evidence: BTreeMap<&'m str, Evidence>,
    none: Evidence,
}

impl<'m> Roles<'m> {
    /// Gives a role to the input that fits, if there is exactly one and no input has the role. A decoder has either
    /// token ids or embeddings.
    fn give(&mut self, role: InputRole, fits: impl Fn(&[Input<'m>], &Input<'m>, &Evidence) -> bool) {
        let is_taken = |input: &Input<'m>| input.role == role || input.role.is_tokens() && role.is_tokens();
        if self.inputs.iter().any(is_taken) {
            return;
        }
        let fits = |input: &Input<'m>| {
            let seen = self.evidence.get(input.value.name).unwrap_or(&self.none);
            input.role == InputRole::Other && fits(&self.inputs, input, seen)
        };
        let mut fitting = self.inputs.iter().enumerate().filter(|(_, input)| fits(input)).map(|(at, _)| at);
        let only = fitting.next().filter(|_| fitting.next().is_none());
        if let Some(input) = only.and_then(|at| self.inputs.get_mut(at)) {
            input.role = role;
        }
    }
}

/// Returns how the nodes of a graph use its inputs.
fn evidence<'m>(graph: &Graph<'m>, masks: &[SlotMask<'m>]) -> BTreeMap<&'m str, Evidence> {
    let masks: BTreeSet<&str> = masks.iter().map(SlotMask::value).collect();
    let mut evidence: BTreeMap<&'m str, Evidence> = BTreeMap::new();
    for (input, role, node) in uses(graph) {
        // Attention that reads no cache has masks of another length, such as that of an encoder.
        let reads_mask = || node.proto().input.iter().any(|name| masks.contains(name.as_str()));
        if role != InputRole::AttentionMask || reads_mask() {
            evidence.entry(input).or_default().role.get_or_insert(role);
        }
    }
    let mut picked = BTreeMap::new();
    for node in graph.nodes() {
        if let Some((rows, index)) = table(graph, node) {
            evidence.entry(index).or_default().tables.push(rows);
            picked.extend(node.output(0).map(|rows| (rows, index)));
        }
        if let Some(index) = picked_by_element(graph, node) {
            evidence.entry(index).or_default().picks_elements = true;
            picked.extend(node.output(0).map(|elements| (elements, index)));
        }
    }
    let mut angles = rotary::computed(graph);
    angles.append(&mut picked);
    for input in rotary::rotated_by(graph, angles) {
        evidence.entry(input).or_default().is_angle = true;
    }
    evidence
}

/// Returns the number of rows of a table and the graph input that picks rows from it.
fn table<'m>(graph: &Graph<'m>, node: &Node<'m>) -> Option<(usize, &'m str)> {
    let picks_rows = (node.is("Gather") && node.attribute("axis").and_then(|axis| axis.i).unwrap_or(0) == 0)
        || (node.domain(), node.op_type()) == ("com.microsoft", "GatherBlockQuantized");
    if !picks_rows {
        return None;
    }
    // OPT adds 2 to its positions before it uses them as indices.
    let is_index = |node: &Node<'_>| !matches!(node.op_type(), "Slice" | "Pad" | "Transpose");
    let picked = through(graph, node.input(1)?, is_index)?;
    // The table of a quantised embedding may be reshaped weights of the logits. Its scales have the same rows.
    let is_quantised = node.op_type() == "GatherBlockQuantized";
    let scales = if is_quantised { node.input(2) } else { None };
    let rows = |table: &'m str| {
        let path = Path::back(graph, table);
        let dims = &graph.constant(path.source).filter(|table| table.dims.len() == 2)?.dims;
        usize::try_from(*dims.get(path.axis_at_source(0)?)?).ok()
    };
    Some((rows(node.input(0)?).or_else(|| rows(scales?))?, picked))
}

/// Returns the graph input that picks single elements of a table. GPT-J's positions pick elements of its
/// table of sines.
fn picked_by_element<'m>(graph: &Graph<'m>, node: &Node<'m>) -> Option<&'m str> {
    if !node.is("GatherElements") {
        return None;
    }
    let mut index = node.input(1)?;
    for _ in 0..MAX_STEPS {
        if graph.is_input(index) {
            return Some(index);
        }
        let (maker, _) = graph.producer(index)?;
        let is_repeated = Passing::of_node(&maker) == Some(Passing::Repeats);
        index = maker.input(0).filter(|_| is_repeated || keeps_elements(&maker))?;
    }
    None
}

fn is_integer(value: &ValueInfo<'_>) -> bool {
    matches!(value.element, ElementType::Int64 | ElementType::Int32)
}

fn is_vectors(value: &ValueInfo<'_>) -> bool {
    value.rank() == Some(3) && is_float(value.element)
}

fn is_by_slot(value: &ValueInfo<'_>) -> bool {
    value.rank() == Some(2)
}

fn is_per_sample(value: &ValueInfo<'_>) -> bool {
    is_integer(value) && value.rank() == Some(1)
}
