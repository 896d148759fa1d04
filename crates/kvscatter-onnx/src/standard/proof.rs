//! Evaluates a node and the nodes that take its place on the same random values.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kvscatter::ElementType;

use super::error::NoStandardForm;
use super::node::{Replacing, Standard};
use super::rule::Rule;
use crate::edit::Editor;
use crate::fold::{Budget, Fold, MAX_VALUES, Value, Values, round};
use crate::graph::{DEFAULT_DOMAIN, full_domain};
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use crate::{DEFAULT_MEMORY_LIMIT, Graph, OnnxError, opset, random_inputs};

/// The largest dimension of a value if the proof may choose it.
const SCALED: usize = 12;

/// The largest number of rows of a table, such as that of the cosines of all positions.
const ROWS: usize = 64;

/// The factors of random numbers, which are otherwise between 0.25 and 4. Small ones make all weights of a
/// softmax count, and large ones reach the caps on scores.
const MAGNITUDES: [f64; 2] = [0.5, 2.0];

/// The number of proofs that are remembered. A model has few kinds of nodes.
const REMEMBERED: usize = 64;

/// The proofs of one model, which share a budget of work.
pub(super) struct FormProofs {
    budget: Rc<Budget>,
    /// What was proved: nodes without names, and what is known about their inputs.
    proved: VecDeque<(NodeProto, Vec<Option<Value>>)>,
}

impl FormProofs {
    pub(super) fn new() -> Self {
        Self { budget: Rc::new(Budget::new()), proved: VecDeque::new() }
    }

    /// Checks that a rule's nodes compute the same as the node, for every output that has elements.
    ///
    /// # Errors
    /// * Returns [`NoStandardForm`] if they do not, or if the rule has no form for the node.
    /// * Returns the errors of the evaluation.
    pub(super) fn prove(&mut self, rule: &Rule, it: &Replacing<'_>) -> Result<(), OnnxError> {
        let question = (anonymous(it.node), scaled(rule, it.facts)?);
        if self.proved.contains(&question) {
            return Ok(());
        }
        let (node, facts) = &question;
        let original = model(node, facts);
        let mut standard = original.clone();
        let mut editor = Editor::new(&mut standard)?;
        editor.remove_node(0);
        (rule.replace)(&mut Standard::new(&mut editor), &Replacing { node, facts })?;
        editor.finish()?;
        for magnitude in MAGNITUDES {
            let given = given(facts, magnitude)?;
            let before = self.outputs(&original, &given, node)?;
            let after = self.outputs(&standard, &given, node)?;
            let named = node.output.iter().enumerate().filter(|(_, name)| !name.is_empty());
            for ((output, _), (before, after)) in named.zip(before.iter().zip(&after)) {
                compare(output, before, after)?;
            }
        }
        self.proved.truncate(REMEMBERED - 1);
        self.proved.push_front(question);
        Ok(())
    }

    fn outputs(
        &self,
        model: &ModelProto,
        given: &BTreeMap<String, Value>,
        node: &NodeProto,
    ) -> Result<Vec<Value>, OnnxError> {
        let graph = Graph::new(model)?;
        let mut fold = Fold::within(&self.budget, &graph);
        for (name, value) in given.iter().filter(|(name, _)| graph.input_names().any(|it| it == *name)) {
            fold.set(name, value.clone())?;
        }
        let named = node.output.iter().filter(|name| !name.is_empty());
        named.map(|name| fold.value(name).cloned()).collect()
    }
}

/// Returns the node with names that depend only on the positions of its inputs and outputs.
fn anonymous(node: &NodeProto) -> NodeProto {
    let renamed = |names: &[String], prefix: &str| {
        let name = |(slot, name): (usize, &String)| match name.is_empty() {
            true => String::new(),
            false => format!("{prefix}{slot}"),
        };
        names.iter().enumerate().map(name).collect()
    };
    NodeProto {
        input: renamed(&node.input, "input"),
        output: renamed(&node.output, "output"),
        op_type: node.op_type.clone(),
        domain: node.domain.clone(),
        attribute: node.attribute.clone(),
        ..NodeProto::default()
    }
}

/// Returns what is known about the inputs of a small node of the same kind.
fn scaled(rule: &Rule, facts: &[Option<Value>]) -> Result<Vec<Option<Value>>, OnnxError> {
    let scaled = |fact: &Value| {
        let mut shape = fact.shape.clone();
        if rule.is_scalable {
            shape.iter_mut().for_each(|size| *size = (*size).min(SCALED));
        } else if let [rows, _] = shape.as_mut_slice() {
            *rows = (*rows).min(ROWS);
        }
        // Numbers such as lengths must fit each other, so known ones are kept.
        let is_kept = shape == fact.shape && matches!(fact.data, Some(Values::Ints(_)));
        Value::new(fact.element, shape, fact.data.clone().filter(|_| is_kept))
    };
    facts.iter().map(|fact| fact.as_ref().map(scaled).transpose()).collect()
}

/// Returns values for the inputs: those that are known, and random ones of a magnitude.
fn given(facts: &[Option<Value>], magnitude: f64) -> Result<BTreeMap<String, Value>, OnnxError> {
    let named =
        || facts.iter().enumerate().filter_map(|(slot, fact)| Some((format!("input{slot}"), fact.as_ref()?)));
    let unknown: BTreeMap<String, &Value> = named().filter(|(_, fact)| fact.data.is_none()).collect();
    if let Some(large) = unknown.values().map(|fact| fact.len()).find(|&len| len > MAX_VALUES) {
        return Err(NoStandardForm::Form { what: format!("a value of {large} elements") }.into());
    }
    let types = unknown.iter().map(|(name, fact)| (name.as_str(), (fact.element, fact.shape.clone())));
    let random = random_inputs::tensors(&types.collect(), 0, DEFAULT_MEMORY_LIMIT)?;
    let mut given = BTreeMap::new();
    for (name, fact) in named() {
        let value = match random.get(name.as_str()) {
            Some(tensor) => scale(Value::from_tensor(tensor)?, magnitude),
            None => fact.clone(),
        };
        given.insert(name, value);
    }
    Ok(given)
}

fn scale(mut value: Value, factor: f64) -> Value {
    if let Some(Values::Floats(floats)) = &mut value.data {
        floats.iter_mut().for_each(|it| *it = round(value.element, *it * factor));
    }
    value
}

/// Creates a model of one node.
fn model(node: &NodeProto, facts: &[Option<Value>]) -> ModelProto {
    let declared = |name: String| ValueInfoProto { name: Some(name), ..ValueInfoProto::default() };
    let inputs = facts.iter().enumerate().filter(|(_, fact)| fact.is_some());
    let outputs = node.output.iter().filter(|name| !name.is_empty());
    let graph = GraphProto {
        node: vec![node.clone()],
        input: inputs.map(|(slot, _)| declared(format!("input{slot}"))).collect(),
        output: outputs.map(|name| declared(name.clone())).collect(),
        ..GraphProto::default()
    };
    let import = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
        ..OperatorSetIdProto::default()
    };
    let mut imports = vec![import("", opset::NEWEST)];
    let domain = full_domain(node.domain.as_deref());
    if domain != DEFAULT_DOMAIN {
        imports.push(import(domain, 1));
    }
    ModelProto { graph: graph.into(), opset_import: imports, ..ModelProto::default() }
}

/// Compares an output. Rounding to 16 bits after every node makes a difference.
fn compare(output: usize, before: &Value, after: &Value) -> Result<(), OnnxError> {
    let (Some(first), Some(second)) = (before.as_floats(), after.as_floats()) else {
        return Err(NoStandardForm::Unknown { output }.into());
    };
    if (before.element, &before.shape) != (after.element, &after.shape) {
        return Err(NoStandardForm::Differs { output, difference: f64::INFINITY }.into());
    }
    let largest = first.iter().fold(1.0_f64, |most, it| most.max(it.abs()));
    let difference = first.iter().zip(second).map(|(a, b)| (a - b).abs());
    let difference = difference.fold(0.0_f64, |most, it| if it > most || it.is_nan() { it } else { most });
    if difference <= tolerance(before.element) * largest {
        return Ok(());
    }
    Err(NoStandardForm::Differs { output, difference }.into())
}

/// Returns the largest difference that rounding explains, relative to the largest number of an output.
fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => 0.02,
        ElementType::BFloat16 => 0.15,
        _ => 1e-5,
    }
}
