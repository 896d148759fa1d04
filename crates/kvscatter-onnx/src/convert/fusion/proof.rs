//! Proves that one `Attention` node computes the same as an attention operation of separate nodes.
//!
//! The separate nodes read queries and growing caches. The node reads the same queries, and static caches that contain
//! the same rows and unused ones with other numbers.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::fused::{CacheNames, FusedAttention};
use super::region::Region;
use super::sink::Sinks;
use crate::convert::caches::AXIS;
use crate::convert::kept::{KeptForm, KeptReason};
use crate::convert::probe::{Inputs, Probe, SAMPLES};
use crate::convert::probes::Padding;
use crate::edit::Editor;
use crate::fold::{Fold, MAX_VALUES, Value, Values, lowest, round, signed, to_float};
use crate::proto::{ModelProto, OperatorSetIdProto, ValueInfoProto};
use crate::prove::{Case, Excerpt, Inequality, Prover, Question, multiply, untyped_model, with_random};
use crate::{Node, OnnxError};

/// The deviation of the scores from their mean, which makes many weights of a softmax count.
const SPREAD: f64 = 1.5;

/// The deviation of a product of two of the random numbers.
const DEVIATION: f64 = 2.2;

/// The number of slots of a static cache after those in use.
const UNUSED: usize = 2;

/// The names of the queries and of the static caches.
const OPERANDS: [&str; 3] = ["queries", "keys", "values"];

/// The names of the growing caches.
const GROWING: [&str; 2] = ["growing keys", "growing values"];

const SINKS: &str = "sinks";
const MASK: &str = "mask";
const LENGTHS: &str = "nonpad_kv_seqlen";
const OUTPUT: &str = "output";

/// The number of questions that are remembered. Models alternate between few kinds of layers.
const REMEMBERED: usize = 4;

/// Returns the steps on which both are evaluated: several tokens with a hidden slot among the visible ones if there
/// may be one, and one token. A sample has at most `max_seq` tokens.
pub(super) fn probes(inputs: &Inputs<'_>, padding: Padding, max_seq: usize) -> Vec<Probe> {
    let probe = |past: usize, new: usize| inputs.probe(SAMPLES, past, new.min(max_seq)).within(max_seq);
    let several = probe(3, 2);
    let several = if padding == Padding::Anywhere { several.padded(&[1..2, 0..0]) } else { several };
    vec![inputs.with_blocks(several), probe(8, 1)]
}

/// The proofs of one decoder.
pub(super) struct FusionProofs<'a> {
    opset_import: &'a [OperatorSetIdProto],
    probes: &'a [Probe],
    prover: Prover,
}

impl<'a> FusionProofs<'a> {
    pub(super) fn new(opset_import: &'a [OperatorSetIdProto], probes: &'a [Probe]) -> Self {
        Self { opset_import, probes, prover: Prover::new(REMEMBERED) }
    }

    /// Checks on every probe that an `Attention` node with these operands can take the place of a region. The
    /// folds are evaluations of the decoder on the probes.
    ///
    /// # Errors
    /// Returns the reason why the nodes of the region must stay. It is [`KeptReason::Unproved`] once the
    /// budget is spent.
    pub(super) fn prove(
        &mut self,
        region: &Region<'_>,
        fused: &FusedAttention<'_>,
        folds: &mut [Fold<'_>],
    ) -> Result<(), KeptReason> {
        if region.nodes.is_empty() {
            return Err(KeptForm::NoRegion.into());
        }
        if let Some(value) = region.escaped {
            return Err(KeptReason::Read { value: value.to_owned() });
        }
        let proved = self.answer(region, fused, folds);
        proved.map_err(|reason| if self.prover.budget().is_spent() { KeptReason::Unproved } else { reason })
    }

    fn answer(
        &mut self,
        region: &Region<'_>,
        fused: &FusedAttention<'_>,
        folds: &mut [Fold<'_>],
    ) -> Result<(), KeptReason> {
        let mut known = Vec::new();
        let given = given(fused);
        let excerpt = separate(region, fused, &given, self.opset_import);
        for (probe, fold) in self.probes.iter().zip(folds) {
            let mut of_probe = facts(probe, fused, fold)?;
            for (&value, name) in excerpt.inputs.iter().filter(|(value, _)| !given.contains_key(*value)) {
                let elements = fold.known(value)?.filter(|known| known.data.is_some());
                let elements = elements.ok_or_else(|| KeptReason::Unknown { value: value.to_owned() })?;
                self.prover.budget().charge_values(elements)?;
                of_probe.entry(name.clone()).or_insert_with(|| elements.clone());
            }
            known.push(of_probe);
        }
        let after = fused_model(fused, self.opset_import)?;
        let question = Question { before: excerpt.model, after, known, rounded: Some(fused.element) };
        let probes = self.probes;
        let proved = self.prover.equal(question, |question| cases(probes, fused, question));
        proved.map_err(|inequality| reason(inequality, region, fused))
    }
}

/// Returns what is known about the inputs of the `Attention` node, with the names of a question.
fn facts(
    probe: &Probe,
    fused: &FusedAttention<'_>,
    fold: &mut Fold<'_>,
) -> Result<BTreeMap<String, Value>, KeptReason> {
    let mut facts = BTreeMap::new();
    let slots = probe.total().saturating_add(UNUSED);
    for (name, value) in OPERANDS.into_iter().zip(fused.starts()) {
        let known = fold.value(value)?;
        if known.len() > MAX_VALUES {
            return Err(KeptReason::Unknown { value: value.to_owned() });
        }
        let (element, mut shape) = (known.element, known.shape.clone());
        if let Some(size) = shape.get_mut(AXIS).filter(|_| name != OPERANDS[0]) {
            *size = slots;
        }
        facts.insert(name.to_owned(), Value::shaped(element, shape)?);
    }
    if let Some(sinks) = &fused.sinks {
        let Value { element, shape, .. } = fold.value(sinks.value)?.clone();
        // Large sinks leave so little of the result that every result would be equal.
        facts.insert(SINKS.to_owned(), sinks.moderate().spread(element, &shape)?);
    }
    facts.insert(MASK.to_owned(), mask(probe, fused, slots)?);
    let length = signed(probe.total());
    facts.insert(LENGTHS.to_owned(), Value::ints(vec![length; probe.batch])?);
    Ok(facts)
}

/// Returns the mask of the `Attention` node by the rule, for caches of this many slots.
fn mask(probe: &Probe, fused: &FusedAttention<'_>, slots: usize) -> Result<Value, OnnxError> {
    let FusedAttention { rule, element, .. } = fused;
    let heads = rule.biased_heads();
    let mut added = Vec::new();
    for sample in 0..probe.batch {
        for head in 0..heads {
            for token in 0..probe.new {
                let mut row = rule.row(probe, sample, token);
                row.resize(slots, None);
                added.extend(row.into_iter().map(|distance| Some(rule.added(head, distance?))));
            }
        }
    }
    let shape = vec![probe.batch, heads, probe.new, slots];
    if rule.bias.is_none() {
        let visible = added.iter().map(Option::is_some).collect();
        return Value::new(ElementType::Bool, shape, Some(Values::Bools(visible)));
    }
    let hidden = lowest(*element).unwrap_or(f64::NEG_INFINITY);
    let added = added.into_iter().map(|added| added.map_or(hidden, |added| round(*element, added)));
    Value::new(*element, shape, Some(Values::Floats(added.collect())))
}

/// Returns the values to which the proof gives other elements, with their names in a question. A cache may contain both
/// keys and values.
fn given<'m>(fused: &FusedAttention<'m>) -> BTreeMap<&'m str, &'static str> {
    let [queries, keys, values] = fused.starts();
    let mut given = BTreeMap::new();
    let sinks = fused.sinks.as_ref().map(|sinks| (sinks.value, SINKS));
    let starts = [(queries, OPERANDS[0]), (keys, GROWING[0]), (values, GROWING[1])];
    for (value, name) in starts.into_iter().chain(sinks) {
        given.entry(value).or_insert(name);
    }
    given
}

/// Returns a model of the separate nodes.
fn separate<'m>(
    region: &Region<'m>,
    fused: &FusedAttention<'m>,
    given: &BTreeMap<&'m str, &'static str>,
    opset_import: &[OperatorSetIdProto],
) -> Excerpt<'m> {
    let nodes: Vec<_> = region.nodes.iter().map(Node::proto).collect();
    let names = given.iter().map(|(&value, &name)| (value, name)).chain([(fused.output, OUTPUT)]);
    let names = names.map(|(value, name)| (value, name.to_owned()));
    Excerpt::new(&nodes, &[fused.output], names, opset_import.to_vec())
}

/// Returns a model of the `Attention` node.
fn fused_model(
    fused: &FusedAttention<'_>,
    opset_import: &[OperatorSetIdProto],
) -> Result<ModelProto, OnnxError> {
    let inputs = OPERANDS.into_iter().chain([MASK, LENGTHS]);
    let mut model = untyped_model(Vec::new(), inputs, [], opset_import.to_vec());
    let mut editor = Editor::new(&mut model)?;
    let [queries, keys, mut values] = OPERANDS;
    if fused.caches[0] == fused.caches[1] {
        values = keys;
    }
    let renamed = FusedAttention {
        queries,
        caches: [keys, values].map(|present| CacheNames { written: present, present }),
        output: OUTPUT,
        sinks: fused.sinks.as_ref().map(Sinks::moderate),
        ..fused.clone()
    };
    renamed.write(&mut editor, MASK, LENGTHS)?;
    model.graph.get_or_insert_default().output.push(ValueInfoProto::new(OUTPUT));
    Ok(model)
}

/// Returns the evaluations of a question, with random queries and caches.
fn cases(probes: &[Probe], fused: &FusedAttention<'_>, question: &Question) -> Result<Vec<Case>, OnnxError> {
    let mut cases = Vec::new();
    for (probe, known) in probes.iter().zip(&question.known) {
        for &is_capped in amounts_of_capping(fused) {
            let mut given = with_random(known)?;
            let mut heads = 1;
            if let Some(queries) = given.get_mut(OPERANDS[0]) {
                heads = queries.shape.get(1).copied().unwrap_or(1);
                let head_size = to_float(queries.shape.last().copied().unwrap_or_default());
                let spread = f64::from(fused.scale).abs() * head_size.sqrt() * DEVIATION;
                let wanted = if is_capped { f64::from(fused.softcap).abs() } else { SPREAD };
                multiply(queries, wanted / spread);
            }
            let [_, keys, values] = OPERANDS;
            for (cache, growing) in [keys, values].into_iter().zip(GROWING) {
                if let Some(cache) = given.get(cache) {
                    given.insert(growing.to_owned(), first_slots(cache, probe.total())?);
                }
            }
            cases.push(Case { given, rows: Some(compared_rows(probe, fused, heads)) });
        }
    }
    Ok(cases)
}

/// Returns whether to make scores so large that their cap changes them, for each evaluation. Scores that
/// are rounded to 16 bits are then too inexact to be compared.
fn amounts_of_capping(fused: &FusedAttention<'_>) -> &'static [bool] {
    let is_exact = matches!(fused.element, ElementType::Float32 | ElementType::Float64);
    if fused.is_capped() && is_exact { &[false, true] } else { &[false] }
}

/// Returns the first slots of a cache `[batch, heads, slots, head size]`.
fn first_slots(cache: &Value, slots: usize) -> Result<Value, OnnxError> {
    let mut shape = cache.shape.clone();
    let all = std::mem::replace(shape.get_mut(AXIS).unwrap_or(&mut 0), slots);
    let size = shape.last().copied().unwrap_or_default();
    let slot_of = |place: usize| place.checked_div(size).and_then(|row| row.checked_rem(all));
    let places: Vec<_> =
        (0..cache.len()).filter(|&place| slot_of(place).is_some_and(|slot| slot < slots)).collect();
    let data = cache.data.as_ref().map(|data| data.pick(&places)).transpose()?;
    Value::new(cache.element, shape, data)
}

/// Returns the rows of the result that are compared, those of tokens that see a slot.
///
/// A token of padding may see no slot. The separate nodes then give the mean of all slots, and the node gives
/// zeros. No other token sees either.
fn compared_rows(probe: &Probe, fused: &FusedAttention<'_>, heads: usize) -> Vec<bool> {
    let mut rows = Vec::new();
    for sample in 0..probe.batch {
        let sees = |token| fused.rule.row(probe, sample, token).iter().any(Option::is_some);
        let of_head: Vec<_> = (0..probe.new).map(sees).collect();
        rows.extend(std::iter::repeat_n(of_head, heads).flatten());
    }
    rows
}

fn reason(inequality: Inequality, region: &Region<'_>, fused: &FusedAttention<'_>) -> KeptReason {
    match inequality {
        Inequality::Before(OnnxError::InNode { node, cause }) => {
            // The model of the question has the nodes of the region in the same order.
            let label = region.nodes.get(node.index).map_or(*node, Node::label);
            KeptReason::Evaluation(OnnxError::InNode { node: Box::new(label), cause })
        }
        Inequality::Before(error) | Inequality::After(error) => KeptReason::Evaluation(error),
        Inequality::Unknown { .. } => KeptReason::Unknown { value: fused.output.to_owned() },
        Inequality::Shape { .. } => KeptForm::ResultShape.into(),
        Inequality::Differs { difference, .. } => {
            KeptReason::Differs { scale: fused.scale, softcap: fused.softcap, difference }
        }
    }
}
