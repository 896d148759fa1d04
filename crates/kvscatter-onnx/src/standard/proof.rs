//! Proves that the nodes of a standard form compute the same as the node that they replace.

use std::collections::BTreeMap;

use super::error::NoStandardForm;
use super::form::StandardForm;
use super::node::{Replacing, StandardEditor};
use crate::edit::Editor;
use crate::fold::{MAX_VALUES, Value, Values};
use crate::graph::{DEFAULT_DOMAIN, full_domain};
use crate::proto::{ModelProto, NodeProto, OperatorSetIdProto};
use crate::prove::{Case, Excerpt, Inequality, Prover, Question, multiply, with_random};
use crate::{Graph, OnnxError, opset};

/// The largest dimension of a value if the proof may choose it.
const SCALED: usize = 12;

/// The largest number of rows of a table, such as that of the cosines of all positions.
const ROWS: usize = 64;

/// The factors of random numbers, which are otherwise between 0.25 and 4. Small ones make all weights of a
/// softmax count, and large ones reach the caps on scores.
const MAGNITUDES: [f64; 2] = [0.5, 2.0];

/// The number of proofs that are remembered. A model has few kinds of nodes.
const REMEMBERED: usize = 64;

/// The proofs of one model.
pub(super) struct FormProofs(Prover);

impl FormProofs {
    pub(super) fn new() -> Self {
        Self(Prover::new(REMEMBERED))
    }

    /// Checks that a form's nodes compute the same as the node, for every output that has elements.
    ///
    /// # Errors
    /// * Returns [`NoStandardForm`] if they do not, or if the node has no standard form.
    /// * Returns the errors of the evaluation.
    pub(super) fn prove(&mut self, form: &StandardForm, replacing: &Replacing<'_>) -> Result<(), OnnxError> {
        let question = question(form, replacing)?;
        let outputs = replacing.node.proto().output.iter().enumerate().filter(|(_, name)| !name.is_empty());
        let slots: Vec<_> = outputs.map(|(slot, _)| slot).collect();
        let slot = |output: usize| slots.get(output).copied().unwrap_or(output);
        let differs = |output, difference| NoStandardForm::Differs { output: slot(output), difference };
        self.0.equal(question, cases).map_err(|inequality| match inequality {
            Inequality::Before(error) | Inequality::After(error) => error,
            Inequality::Unknown { output } => NoStandardForm::Unknown { output: slot(output) }.into(),
            Inequality::Shape { output } => differs(output, f64::INFINITY).into(),
            Inequality::Differs { output, difference } => differs(output, difference).into(),
        })
    }
}

/// Returns the question about a small node of the same kind.
fn question(form: &StandardForm, replacing: &Replacing<'_>) -> Result<Question, OnnxError> {
    let before = node_model(replacing.node.proto());
    let facts = replacing.facts.iter().map(|fact| fact.as_ref().map(|fact| scaled(form, fact)).transpose());
    let facts: Vec<_> = facts.collect::<Result<_, _>>()?;
    let mut after = before.clone();
    let mut editor = Editor::new(&mut after)?;
    editor.remove_node(0);
    let mut known = BTreeMap::new();
    for &node in Graph::new(&before)?.nodes() {
        (form.replace)(&mut StandardEditor::new(&mut editor), &Replacing { node, facts: &facts })?;
        let inputs = node.inputs().zip(&facts);
        known.extend(inputs.filter_map(|(name, fact)| Some((name?.to_owned(), fact.clone()?))));
    }
    editor.finish()?;
    Ok(Question { before, after, known: vec![known], rounded: None })
}

/// Returns the known values with random ones of each magnitude.
fn cases(question: &Question) -> Result<Vec<Case>, OnnxError> {
    let mut cases = Vec::new();
    for (known, magnitude) in
        question.known.iter().flat_map(|known| MAGNITUDES.map(|magnitude| (known, magnitude)))
    {
        let unknown = || known.iter().filter(|(_, fact)| fact.data.is_none());
        if let Some(large) = unknown().map(|(_, fact)| fact.len()).find(|&len| len > MAX_VALUES) {
            return Err(NoStandardForm::Form { what: format!("a value of {large} elements") }.into());
        }
        let mut given = with_random(known)?;
        for (name, _) in unknown() {
            given.entry(name.clone()).and_modify(|value| multiply(value, magnitude));
        }
        cases.push(Case { given, rows: None });
    }
    Ok(cases)
}

/// Returns what is known about an input of a small node of the same kind.
fn scaled(form: &StandardForm, fact: &Value) -> Result<Value, OnnxError> {
    let mut shape = fact.shape.clone();
    if form.is_scalable {
        shape.iter_mut().for_each(|size| *size = (*size).min(SCALED));
    } else if let [rows, _] = shape.as_mut_slice() {
        *rows = (*rows).min(ROWS);
    }
    // Numbers such as lengths must fit each other, so known ones are kept.
    let is_kept = shape == fact.shape && matches!(fact.data, Some(Values::Ints(_)));
    Value::new(fact.element, shape, fact.data.clone().filter(|_| is_kept))
}

/// Returns a model of one node. Names depend only on the positions of inputs and outputs.
pub(super) fn node_model(node: &NodeProto) -> ModelProto {
    let mut imports = vec![OperatorSetIdProto::new("", opset::NEWEST)];
    let domain = full_domain(node.domain.as_deref());
    if domain != DEFAULT_DOMAIN {
        imports.push(OperatorSetIdProto::new(domain, 1));
    }
    let outputs: Vec<_> = node.output.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    let names = by_slot("input", &node.input).chain(by_slot("output", &node.output));
    Excerpt::new(&[node], &outputs, names, imports).model
}

/// Returns new names of values.
fn by_slot<'m>(prefix: &str, values: &'m [String]) -> impl Iterator<Item = (&'m str, String)> {
    values.iter().enumerate().map(move |(slot, value)| (value.as_str(), format!("{prefix}{slot}")))
}
