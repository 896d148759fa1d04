//! Proves that the nodes around a cache move its rows as its layout requires.
//!
//! The exported nodes append new rows to a past in its exported layout. The new nodes append the same rows to the same
//! past with the expected axes, and return it in the exported layout. Both must be equal, on rows whose numbers all
//! differ. This checks the place of each cached row, which the layout gives, and of each new row, which the exported
//! nodes give.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use crate::convert::caches::RANK;
use crate::fold::{MAX_VALUES, Value, Values, elements, strides, to_float, walk};
use crate::proto::TensorProto;
use crate::prove::{Case, Excerpt, Inequality, Prover, Question};
use crate::{Graph, Model, Node, OnnxError};

// The sizes of the rows. They differ, so that no axis can take the place of another one.
const BATCH: usize = 2;
const PAST: usize = 4;
const NEW: usize = 3;
const HEAD_SIZE: usize = 5;

/// The number of heads if the layout does not depend on it.
const HEADS: usize = 6;

// The names of the past in both layouts, and of the new rows.
const EXPORTED_PAST: &str = "exported past";
const FORMED_PAST: &str = "formed past";
const UPDATE: &str = "update";

/// A cache whose layout was changed.
pub(super) struct Relaid<'a> {
    pub(super) writer: Node<'a>,
    pub(super) past: &'a str,
    /// The new rows.
    pub(super) update: &'a str,
    /// The order of the expected axes in the exported cache, before its heads are merged.
    pub(super) order: [usize; RANK],
    /// The heads of each sample if they are merged with the samples.
    pub(super) heads: Option<usize>,
    /// The present in its exported layout.
    pub(super) exported: &'a str,
}

/// Checks that a changed model computes a present in its exported layout as the exported nodes do.
///
/// # Errors
/// Returns the reason if it does not.
pub(super) fn prove(
    cache: &Relaid<'_>,
    formed: &Model,
    graph: &Graph<'_>,
    prover: &mut Prover,
) -> Result<(), Inequality> {
    // The file may claim any number of heads.
    if elements(&[BATCH, cache.heads.unwrap_or(HEADS), PAST.max(NEW), HEAD_SIZE]) > MAX_VALUES {
        return Err(Inequality::Unknown { output: 0 });
    }
    let &Relaid { ref writer, past, update, exported, .. } = cache;
    let operators = &formed.proto().opset_import;
    let new_names = |of_past: &str| [(past, of_past.to_owned()), (update, UPDATE.to_owned())];
    let written: Vec<_> = writer.output(0).into_iter().collect();
    let before = Excerpt::new(&[writer.proto()], &written, new_names(EXPORTED_PAST), operators.clone());
    let mut nodes = BTreeMap::new();
    let mut open = vec![exported];
    while let Some(value) = open.pop() {
        if ![past, update].contains(&value)
            && let Some((node, _)) = graph.producer(value)
            && nodes.insert(node.index(), node.proto()).is_none()
        {
            open.extend(node.reads());
        }
    }
    let nodes: Vec<_> = nodes.into_values().collect();
    let mut after = Excerpt::new(&nodes, &[exported], new_names(FORMED_PAST), operators.clone());
    for (value, name) in after.inputs {
        let constant =
            graph.initializer(value).map(|constant| TensorProto { name: Some(name), ..constant.clone() });
        after.model.graph.get_or_insert_default().initializer.extend(constant);
    }
    let (before, after) = (before.model, after.model);
    let known = vec![given(cache)?];
    let question = Question { before, after, known, rounded: Some(ElementType::Float64) };
    let case = |given: &BTreeMap<String, Value>| Case { given: given.clone(), rows: None };
    prover.equal(question, |question| Ok(question.known.iter().map(case).collect()))
}

/// Returns the past in both layouts, and the new rows.
fn given(cache: &Relaid<'_>) -> Result<BTreeMap<String, Value>, OnnxError> {
    let heads = cache.heads.unwrap_or(HEADS);
    let numbered = |tokens: usize, sign: f64| {
        let shape = vec![BATCH, heads, tokens, HEAD_SIZE];
        let numbers = (1..=elements(&shape)).map(|number| sign * to_float(number));
        let numbers = Values::Floats(numbers.collect());
        Value::new(ElementType::Float64, shape, Some(numbers))
    };
    let (past, update) = (numbered(PAST, 1.0)?, numbered(NEW, -1.0)?);
    Ok([
        (EXPORTED_PAST.to_owned(), exported(cache, &past)?),
        (UPDATE.to_owned(), exported(cache, &update)?),
        (FORMED_PAST.to_owned(), past),
    ]
    .into())
}

/// Returns a value with the expected axes in the exported layout.
fn exported(cache: &Relaid<'_>, value: &Value) -> Result<Value, OnnxError> {
    let in_order = |list: &[usize]| cache.order.map(|axis| list.get(axis).copied().unwrap_or_default());
    let steps = strides(&value.shape);
    let steps = cache.order.map(|axis| steps.get(axis).copied().unwrap_or_default());
    let shape = in_order(&value.shape);
    let moved = value.data.as_ref().map(|data| data.pick(&walk(&shape, 0, &steps))).transpose()?;
    let [samples, heads, inner @ ..] = shape;
    let merged = || [samples.saturating_mul(heads)].into_iter().chain(inner).collect();
    let shape = if cache.heads.is_some() { merged() } else { shape.to_vec() };
    Value::new(value.element, shape, moved)
}
