//! Proves that two small graphs compute the same, by evaluating both on the same values.
//!
//! A proof is a comparison of numbers, not of structures. The caller chooses the values, so that every part of the
//! graphs counts. A question that was proved is not evaluated again, and all questions of one model share a budget of
//! work.

mod excerpt;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kvscatter::ElementType;

use crate::fold::{Budget, Fold, Value, Values, round};
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use crate::{DEFAULT_MEMORY_LIMIT, Graph, OnnxError, random_inputs};

pub(crate) use excerpt::Excerpt;

/// Whether two graphs compute the same. Questions are equal if names of nodes and values do not depend on the layer.
#[derive(Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) before: ModelProto,
    /// The graph that takes the place of the other one, with as many outputs.
    pub(crate) after: ModelProto,
    /// What is known about the inputs of both graphs, once for each evaluation of a kind.
    pub(crate) known: Vec<BTreeMap<String, Value>>,
    /// The type to which the graphs round, or `None` if that is the type of each output.
    pub(crate) rounded: Option<ElementType>,
}

/// One evaluation of both graphs.
#[derive(Debug)]
pub(crate) struct Case {
    /// The values of all inputs by name. The graphs need not have all of them.
    pub(crate) given: BTreeMap<String, Value>,
    /// Which rows of the last axis are compared, or `None` for all.
    pub(crate) rows: Option<Vec<bool>>,
}

/// The reason why two graphs are not proved equal.
#[derive(Debug)]
pub(crate) enum Inequality {
    /// The first graph cannot be evaluated.
    Before(OnnxError),
    /// The question has no answer, or the second graph cannot be evaluated.
    After(OnnxError),
    /// The elements of an output are not known.
    Unknown { output: usize },
    /// An output has another type or shape.
    Shape { output: usize },
    /// The elements of an output differ by this number.
    Differs { output: usize, difference: f64 },
}

/// The proofs of one model.
#[derive(Debug)]
pub(crate) struct Prover {
    budget: Rc<Budget>,
    proved: VecDeque<Question>,
    remembered: usize,
}

impl Prover {
    /// Creates a prover that remembers this many questions.
    pub(crate) fn new(remembered: usize) -> Self {
        Self { budget: Rc::new(Budget::new()), proved: VecDeque::new(), remembered }
    }

    /// Returns the budget that all proofs share.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Checks that both graphs compute the same in all cases.
    ///
    /// # Errors
    /// Returns the reason if they do not.
    pub(crate) fn equal(
        &mut self,
        question: Question,
        cases: impl FnOnce(&Question) -> Result<Vec<Case>, OnnxError>,
    ) -> Result<(), Inequality> {
        if self.proved.contains(&question) {
            return Ok(());
        }
        for Case { given, rows } in cases(&question)? {
            let before = self.outputs(&question.before, &given).map_err(Inequality::Before)?;
            let after = self.outputs(&question.after, &given)?;
            if before.len() != after.len() {
                return Err(Inequality::Shape { output: before.len().min(after.len()) });
            }
            for (output, (before, after)) in before.iter().zip(&after).enumerate() {
                let tolerance = tolerance(question.rounded.unwrap_or(before.element));
                compare(output, [before, after], rows.as_deref(), tolerance)?;
            }
        }
        self.proved.push_front(question);
        self.proved.truncate(self.remembered);
        Ok(())
    }

    fn outputs(&self, model: &ModelProto, given: &BTreeMap<String, Value>) -> Result<Vec<Value>, OnnxError> {
        let graph = Graph::new(model)?;
        let mut fold = Fold::within(&self.budget, &graph);
        for name in graph.fed_names() {
            if let Some(value) = given.get(name) {
                fold.set(name, value.clone())?;
            }
        }
        graph.output_names().map(|name| fold.value(name).cloned()).collect()
    }
}

impl From<OnnxError> for Inequality {
    fn from(error: OnnxError) -> Self {
        Self::After(error)
    }
}

/// Creates a model of these nodes. Types and shapes are not declared.
pub(crate) fn untyped_model<'a>(
    nodes: Vec<NodeProto>,
    inputs: impl IntoIterator<Item = &'a str>,
    outputs: impl IntoIterator<Item = &'a str>,
    opset_import: Vec<OperatorSetIdProto>,
) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: inputs.into_iter().map(ValueInfoProto::new).collect(),
        output: outputs.into_iter().map(ValueInfoProto::new).collect(),
        ..GraphProto::default()
    };
    ModelProto { graph: graph.into(), opset_import, ..ModelProto::default() }
}

/// Returns the values that are known, and random ones for the others.
///
/// # Errors
/// Returns the errors of [`random_inputs::tensors`].
pub(crate) fn with_random(known: &BTreeMap<String, Value>) -> Result<BTreeMap<String, Value>, OnnxError> {
    let unknown = known.iter().filter(|(_, value)| value.data.is_none());
    let types = unknown.map(|(name, value)| (name.as_str(), (value.element, value.shape.clone()))).collect();
    let random = random_inputs::tensors(&types, 0, DEFAULT_MEMORY_LIMIT)?;
    let value = |(name, value): (&String, &Value)| match random.get(name.as_str()) {
        Some(tensor) => Ok((name.clone(), Value::from_tensor(tensor)?)),
        None => Ok((name.clone(), value.clone())),
    };
    known.iter().map(value).collect()
}

/// Multiplies all floats of a value.
pub(crate) fn multiply(value: &mut Value, factor: f64) {
    if let Some(Values::Floats(floats)) = &mut value.data {
        floats.iter_mut().for_each(|number| *number = round(value.element, *number * factor));
    }
}

/// Compares an output. Rounding to 16 bits after every node makes a difference.
fn compare(
    output: usize,
    [before, after]: [&Value; 2],
    rows: Option<&[bool]>,
    tolerance: f64,
) -> Result<(), Inequality> {
    let (Some(first), Some(second)) = (before.as_floats(), after.as_floats()) else {
        return Err(Inequality::Unknown { output });
    };
    if (before.element, &before.shape) != (after.element, &after.shape) {
        return Err(Inequality::Shape { output });
    }
    let size = before.shape.last().copied().unwrap_or(1).max(1);
    let is_compared = |row: usize| rows.is_none_or(|rows| rows.get(row).copied().unwrap_or_default());
    let (mut largest, mut difference) = (1.0_f64, 0.0_f64);
    for (row, (first, second)) in first.chunks(size).zip(second.chunks(size)).enumerate() {
        for (a, b) in first.iter().zip(second).filter(|_| is_compared(row)) {
            // Equal infinities have no difference, and no difference to an infinity is rounding.
            largest = if a.is_finite() { largest.max(a.abs()) } else { largest };
            let distance = if a == b { 0.0 } else { (a - b).abs() };
            difference = if distance > difference || distance.is_nan() { distance } else { difference };
        }
    }
    match difference <= tolerance * largest {
        true => Ok(()),
        false => Err(Inequality::Differs { output, difference }),
    }
}

/// Returns the largest difference that rounding explains, relative to the largest number of an output.
fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => 0.02,
        ElementType::BFloat16 => 0.15,
        // Values are computed in this type.
        ElementType::Float64 => 1e-12,
        _ => 2e-5,
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::compare;
    use crate::fold::{Value, Values};

    #[test]
    fn an_infinity_equals_itself_alone() {
        let value =
            |number| Value::new(ElementType::Float32, vec![1], Some(Values::Floats(vec![number]))).unwrap();
        let is_equal = |before, after| compare(0, [&value(before), &value(after)], None, 2e-5).is_ok();
        assert!(is_equal(f64::INFINITY, f64::INFINITY) && is_equal(3.0, 3.0));
        assert!(!is_equal(f64::INFINITY, 3.0) && !is_equal(3.0, f64::INFINITY));
        assert!(!is_equal(f64::INFINITY, f64::NEG_INFINITY) && !is_equal(f64::NAN, f64::NAN));
    }
}
