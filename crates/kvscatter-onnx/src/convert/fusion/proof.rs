//! Evaluates an attention operation and the `Attention` node that may replace it on the same random values.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kvscatter::ElementType;

use super::question::Question;
use super::region::Region;
use super::{KeptReason, Operands};
use crate::convert::attention::over_caches;
use crate::convert::caches::AXIS;
use crate::convert::probe::{Inputs, Probe, SAMPLES};
use crate::convert::visibility::Padding;
use crate::edit::Editor;
use crate::fold::{Budget, Fold, Value, Values, lowest, round, to_float};
use crate::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::{DEFAULT_MEMORY_LIMIT, Graph, Model, random_inputs};

/// The deviation of the scores from their mean, which makes many weights of a softmax count.
const SPREAD: f64 = 1.5;

/// The deviation of a product of two of the random numbers.
const DEVIATION: f64 = 2.2;

/// The names of the values that the `Attention` node reads and computes.
const NAMES: [&str; 5] = ["queries", "keys", "values", "mask", "nonpad_kv_seqlen"];
const OUTPUT: &str = "output";

/// The number of questions that are remembered. Models alternate between few kinds of layers.
const REMEMBERED: usize = 4;

/// Returns the steps on which both are evaluated: several tokens with a hidden slot among the visible ones if there
/// may be one, and one token. A sample has at most `max_seq` tokens.
pub(super) fn probes(inputs: &Inputs<'_>, padding: Padding, max_seq: usize) -> Vec<Probe> {
    let probe = |past: usize, wanted: usize| {
        let new = inputs.new_tokens().unwrap_or(wanted.min(max_seq));
        Probe::new(inputs.batch().unwrap_or(SAMPLES), past.min(max_seq.saturating_sub(new)), new)
    };
    let several = probe(3, 2);
    let several = if padding == Padding::Nowhere { several } else { several.padded(&[1..2, 0..0]) };
    vec![several, probe(8, 1)]
}

/// Returns the number of slots of a probe's caches. Two slots are empty after the step if `max_seq` allows it.
pub(super) fn capacity(probe: &Probe, max_seq: usize) -> usize {
    probe.total().saturating_add(2).min(max_seq)
}

/// The proofs of one converted model, which share a budget of work.
pub(super) struct FusionProofs<'a> {
    model: &'a Model,
    probes: &'a [Probe],
    budget: Rc<Budget>,
    /// The questions of the last proofs that succeeded. Layers of one model mostly ask the same.
    proved: VecDeque<Question>,
}

impl<'a> FusionProofs<'a> {
    pub(super) fn new(model: &'a Model, probes: &'a [Probe]) -> Self {
        Self { model, probes, budget: Rc::new(Budget::new()), proved: VecDeque::new() }
    }

    /// Checks on every probe that an `Attention` node with these operands can take the place of a region. The
    /// folds are evaluations of the model on the probes.
    ///
    /// # Errors
    /// Returns the reason why the nodes of the region must stay. It is [`KeptReason::Unproved`] once the
    /// budget is spent.
    pub(super) fn prove(
        &mut self,
        region: &Region<'_>,
        operands: &Operands,
        folds: &mut [Fold<'_>],
    ) -> Result<(), KeptReason> {
        if region.nodes.is_empty() {
            return Err(KeptReason::Form {
                what: "its nodes do not lead from its queries and caches to its result",
            });
        }
        if let Some(value) = region.escaped {
            return Err(KeptReason::Read { value: value.to_owned() });
        }
        let proved = self.answer(region, operands, folds);
        proved.map_err(|reason| if self.budget.is_spent() { KeptReason::Unproved } else { reason })
    }

    fn answer(
        &mut self,
        region: &Region<'_>,
        operands: &Operands,
        folds: &mut [Fold<'_>],
    ) -> Result<(), KeptReason> {
        let question = Question::new(region, operands, folds, &self.budget)?;
        if self.proved.contains(&question) {
            return Ok(());
        }
        for (probe, given) in self.probes.iter().zip(&question.given) {
            for &is_capped in operands.amounts_of_capping() {
                let Self { model, budget, .. } = self;
                Proof { model, budget, region, operands, question: &question, probe, given, is_capped }
                    .check()?;
            }
        }
        self.proved.truncate(REMEMBERED - 1);
        self.proved.push_front(question);
        Ok(())
    }
}

/// An attention operation of a converted model on one probe.
struct Proof<'a, 'm> {
    model: &'a Model,
    budget: &'a Rc<Budget>,
    region: &'a Region<'m>,
    operands: &'a Operands,
    question: &'a Question,
    probe: &'a Probe,
    given: &'a BTreeMap<String, Value>,
    /// Whether the scores are so large that their cap changes them much.
    is_capped: bool,
}

impl Proof<'_, '_> {
    /// Checks that both compute the same for every token that sees a slot.
    ///
    /// A token of padding may see no slot. The operation then gives the mean of all slots, and the node gives
    /// zeros. No other token sees either.
    ///
    /// # Errors
    /// Returns the reason why the operation is not proved equal.
    fn check(&self) -> Result<(), KeptReason> {
        let random = self.random()?;
        let before = self.separate(&random)?;
        let after = self.fused(&random)?;
        let floats = |value: &Value| match &value.data {
            Some(Values::Floats(floats)) => Ok(floats.clone()),
            _ => Err(KeptReason::Unknown { value: self.operands.output.clone() }),
        };
        let [before_floats, after_floats] = [floats(&before)?, floats(&after)?];
        let &[_, heads, new, size] = after.shape.as_slice() else {
            return Err(KeptReason::Form { what: "the result is not [batch, heads, new tokens, head size]" });
        };
        let merged = [self.probe.batch.saturating_mul(heads), new, size];
        let shape = if self.operands.is_merged { merged.as_slice() } else { after.shape.as_slice() };
        if before.shape != shape || before.element != after.element {
            return Err(KeptReason::Form { what: "the result is not [batch, heads, new tokens, head size]" });
        }
        let rows = before_floats.chunks(size.max(1)).zip(after_floats.chunks(size.max(1)));
        let mut difference = 0.0_f64;
        for (row, (before, after)) in rows.enumerate() {
            let token = row.checked_rem(new).unwrap_or_default();
            let sample = row.checked_div(new.saturating_mul(heads)).unwrap_or_default();
            if self.operands.rule.row(self.probe, sample, token).iter().any(Option::is_some) {
                let differences = before.iter().zip(after).map(|(before, after)| (before - after).abs());
                difference =
                    differences.fold(difference, |most, it| if it > most || it.is_nan() { it } else { most });
            }
        }
        if difference <= tolerance(self.operands.element) {
            return Ok(());
        }
        let Operands { scale, softcap, .. } = *self.operands;
        Err(KeptReason::Differs { scale, softcap, difference })
    }

    /// Returns random queries, keys and values, with scores whose deviation is known.
    fn random(&self) -> Result<[Value; 3], KeptReason> {
        let Operands { queries, keys, values, scale, softcap, .. } = &self.question.operands;
        let operands = NAMES.into_iter().zip([queries, keys, values]);
        let types = operands.filter_map(|(name, value)| {
            let known = self.given.get(value)?;
            Some((name, (known.element, known.shape.clone())))
        });
        let tensors = random_inputs::tensors(&types.collect(), 0, DEFAULT_MEMORY_LIMIT)?;
        let value = |name: &str| tensors.get(name).map(Value::from_tensor).transpose();
        let [Some(mut queries), Some(keys), Some(values)] =
            [value(NAMES[0])?, value(NAMES[1])?, value(NAMES[2])?]
        else {
            return Err(KeptReason::Unknown { value: self.operands.queries.clone() });
        };
        let head_size = to_float(queries.shape.last().copied().unwrap_or_default());
        let spread = f64::from(*scale).abs() * head_size.sqrt() * DEVIATION;
        let wanted = if self.is_capped { f64::from(*softcap).abs() } else { SPREAD };
        if let Some(Values::Floats(floats)) = &mut queries.data {
            floats.iter_mut().for_each(|number| *number = round(queries.element, *number * wanted / spread));
        }
        Ok([queries, keys, values])
    }

    /// Evaluates the separate nodes. Everything else that they read has the value that the probe gives it.
    fn separate(&self, random: &[Value; 3]) -> Result<Value, KeptReason> {
        let Question { operands: Operands { queries, keys, values, output, .. }, nodes, .. } = self.question;
        let mut inputs: BTreeMap<&str, Value> =
            self.given.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        inputs.extend([queries, keys, values].into_iter().map(String::as_str).zip(random.iter().cloned()));
        // Errors name the nodes.
        let named = nodes
            .iter()
            .zip(self.region.nodes.iter().filter(|node| !self.operands.makes_sinks(node)))
            .map(|(node, original)| NodeProto { name: original.proto().name.clone(), ..node.clone() });
        let mut model = self.model(&inputs);
        model.graph.get_or_insert_default().node = named.collect();
        self.evaluate(&model, inputs, output)
    }

    /// Evaluates the `Attention` node.
    fn fused(&self, random: &[Value; 3]) -> Result<Value, KeptReason> {
        let probe = self.probe;
        let [_, keys, _] = random;
        let mask = self.mask(keys.shape.get(AXIS).copied().unwrap_or_default())?;
        let length = i64::try_from(probe.total()).unwrap_or(i64::MAX);
        let others = [mask, Value::ints(vec![length; probe.batch])?];
        let inputs = NAMES.into_iter().zip(random.iter().chain(&others).cloned()).collect();
        let mut model = self.model(&inputs);
        let mut editor = Editor::new(&mut model)?;
        let [queries, keys, values, mask, nonpad] = NAMES;
        let node = over_caches([queries, keys, values], mask, nonpad);
        let last = self.question.operands.add_before_last(&mut editor, node, nonpad)?;
        editor.add(last.outputs(&[OUTPUT]));
        self.evaluate(&model, inputs, OUTPUT)
    }

    /// Returns the mask of the `Attention` node by the rule, for caches of this many slots.
    fn mask(&self, slots: usize) -> Result<Value, KeptReason> {
        let probe = self.probe;
        let Operands { rule, element, .. } = self.operands;
        let heads = rule.bias.as_ref().map_or(1, |bias| bias.slopes.len());
        let mut added = Vec::new();
        for sample in 0..probe.batch {
            for head in 0..heads {
                for token in 0..probe.new {
                    let mut row = rule.row(probe, sample, token);
                    row.resize(slots, None);
                    added.extend(row.into_iter().map(|it| Some(it? * rule.slope(head))));
                }
            }
        }
        let shape = vec![probe.batch, heads, probe.new, slots];
        Ok(if rule.bias.is_none() {
            let visible = added.iter().map(Option::is_some).collect();
            Value::new(ElementType::Bool, shape, Some(Values::Bools(visible)))?
        } else {
            let hidden = lowest(*element).unwrap_or(f64::NEG_INFINITY);
            let added = added.into_iter().map(|added| added.map_or(hidden, |it| round(*element, it)));
            Value::new(*element, shape, Some(Values::Floats(added.collect())))?
        })
    }

    /// Returns a model with these inputs, without nodes, in the operator sets of the model.
    fn model(&self, inputs: &BTreeMap<&str, Value>) -> ModelProto {
        let declared =
            |name: &&str| ValueInfoProto { name: Some((*name).to_owned()), ..ValueInfoProto::default() };
        let graph = GraphProto { input: inputs.keys().map(declared).collect(), ..GraphProto::default() };
        let opset_import = self.model.proto().opset_import.clone();
        ModelProto { graph: graph.into(), opset_import, ..ModelProto::default() }
    }

    /// Evaluates a value of a model with these inputs.
    fn evaluate(
        &self,
        model: &ModelProto,
        inputs: BTreeMap<&str, Value>,
        output: &str,
    ) -> Result<Value, KeptReason> {
        let graph = Graph::new(model)?;
        let mut fold = Fold::within(self.budget, &graph);
        for (name, value) in inputs {
            fold.set(name, value)?;
        }
        Ok(fold.value(output)?.clone())
    }
}

/// Returns the largest difference that rounding explains. The random values are below 4.
fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => 0.05,
        ElementType::BFloat16 => 0.3,
        _ => 1e-4,
    }
}
