//! Proves that flat rows are the rows before, and that attention over flat caches computes the same.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::sites::{FlatCache, FlatReader, PASS};
use crate::convert::caches::RANK;
use crate::convert::refusal::ConvertRefusal;
use crate::fold::{Fold, MAX_VALUES, Value, Values, elements, signed, strides, to_float, walk};
use crate::onnx_attention::{KEYS, MASK, NONPAD_KV_SEQLEN, QUERIES, VALUES};
use crate::proto::{ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use crate::prove::{Case, Excerpt, Inequality, Prover, Question, untyped_model};
use crate::{Graph, Node, OnnxError};

// The sizes of the values. They differ, so that no axis can take the place of another one.
const BATCH: usize = 2;
const NEW: usize = 3;
const SLOTS: usize = 7;

/// The number of questions that are remembered. Windows and head sizes may differ by layer.
const REMEMBERED: usize = 16;

/// The numbers of made-up values are from -0.5 to 0.5, and repeat after this many.
const PERIOD: usize = 9973;

/// Checks the new rows of each cache, which have these names, and each attention. Returns what was compared.
///
/// # Errors
/// Returns [`ConvertRefusal::PassDiffers`], wrapped with the node of the graph before, and errors of the evaluation.
pub(super) fn check<'m>(
    before: &Graph<'m>,
    after: &Graph<'_>,
    (caches, rows): (&[FlatCache<'_, 'm>], &[String]),
    readers: &[FlatReader<'m>],
    fold: &mut Fold<'m>,
    operators: &[OperatorSetIdProto],
) -> Result<String, OnnxError> {
    let mut prover = Prover::new(REMEMBERED);
    for (cache, rows) in caches.iter().zip(rows) {
        let proved = rows_question(cache, rows, after, operators).map_err(Inequality::from);
        let proved = proved.and_then(|question| prover.equal(question, cases));
        proved.map_err(|inequality| refused(&cache.writer, rows, inequality))?;
    }
    for reader in readers {
        let result = reader.node.output(0).unwrap_or_default();
        let proved = attention_question(reader, [before, after], fold, operators).map_err(Inequality::from);
        let proved = proved.and_then(|question| prover.equal(question, cases));
        proved.map_err(|inequality| refused(&reader.node, result, inequality))?;
    }
    Ok(format!("the rows of {} caches and {} attentions on made-up values", caches.len(), readers.len()))
}

fn cases(question: &Question) -> Result<Vec<Case>, OnnxError> {
    let case = |given: &BTreeMap<String, Value>| Case { given: given.clone(), rows: None };
    Ok(question.known.iter().map(case).collect())
}

fn refused(node: &Node<'_>, value: &str, inequality: Inequality) -> OnnxError {
    match inequality {
        Inequality::Before(error) | Inequality::After(error) => node.error(error.into_root()),
        Inequality::Unknown { .. } | Inequality::Shape { .. } | Inequality::Differs { .. } => {
            node.error(ConvertRefusal::PassDiffers { pass: PASS, value: value.to_owned() })
        }
    }
}

/// Asks whether flat rows are the rows before, by their numbers.
fn rows_question(
    cache: &FlatCache<'_, '_>,
    rows: &str,
    after: &Graph<'_>,
    operators: &[OperatorSetIdProto],
) -> Result<Question, OnnxError> {
    const UPDATE: &str = "update";
    const FLAT: &str = "flat update";
    let shape = [BATCH, cache.heads, NEW, cache.size];
    let update = made_up(cache.cache.element, &shape, 0)?;
    let known = [(FLAT.to_owned(), flat(&update)?), (UPDATE.to_owned(), update)].into();
    let nodes = vec![NodeProto::new("Identity", &[FLAT], &["rows"])];
    let before = untyped_model(nodes, [FLAT], ["rows"], operators.to_vec());
    let after = excerpt(after, rows, &[(cache.update, UPDATE.to_owned())], operators);
    Ok(Question { before, after, known: vec![known], rounded: Some(ElementType::Float64) })
}

/// Asks whether an attention over flat keys and values computes the same.
fn attention_question<'m>(
    reader: &FlatReader<'m>,
    [before, after]: [&Graph<'_>; 2],
    fold: &mut Fold<'m>,
    operators: &[OperatorSetIdProto],
) -> Result<Question, OnnxError> {
    let FlatReader { node, heads: [queries, keys], sizes: [size, value_size], is_by_head } = reader;
    let (mut known, mut names) = (BTreeMap::new(), [Vec::new(), Vec::new()]);
    for (slot, name) in node.proto().input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        let Value { element, ref shape, .. } = *fold.value(name)?;
        let by_head =
            |heads: usize, tokens: usize, size: usize| made_up(element, &[BATCH, heads, tokens, size], slot);
        let value = match slot {
            QUERIES if *is_by_head => by_head(*queries, NEW, *size)?,
            QUERIES => flat(&by_head(*queries, NEW, *size)?)?,
            KEYS => by_head(*keys, SLOTS, *size)?,
            VALUES => by_head(*keys, SLOTS, *value_size)?,
            MASK => made_up(element, &mask_shape(shape, *queries), slot)?,
            NONPAD_KV_SEQLEN => Value::ints([signed(NEW), signed(SLOTS)].to_vec())?,
            _ => return Err(ConvertRefusal::AttentionForm { what: "this input" }.into()),
        };
        let [exported, new] = [format!("input {slot}"), format!("new input {slot}")];
        let is_flat = matches!(slot, KEYS | VALUES);
        names[0].push((name.as_str(), exported.clone()));
        names[1].push((name.as_str(), if is_flat { new.clone() } else { exported.clone() }));
        if is_flat {
            known.insert(new, flat(&value)?);
        }
        known.insert(exported, value);
    }
    let [exported, new] = names;
    let result = node.output(0).unwrap_or_default();
    let before = excerpt(before, result, &exported, operators);
    let after = excerpt(after, result, &new, operators);
    Ok(Question { before, after, known: vec![known], rounded: None })
}

/// Returns the shape of a made-up mask that has several samples and heads where this one has.
fn mask_shape(shape: &[usize], heads: usize) -> Vec<usize> {
    let outer = shape.split_last_chunk::<2>().map_or(&[][..], |(outer, _)| outer);
    let size = |(axis, &size): (usize, &usize)| match (size, axis.saturating_add(1) == outer.len()) {
        (1, _) => 1,
        (_, true) => heads,
        (_, false) => BATCH,
    };
    outer.iter().enumerate().map(size).chain([NEW, SLOTS]).collect()
}

/// Returns the nodes that compute a value from these values, with their constants.
fn excerpt(
    graph: &Graph<'_>,
    value: &str,
    given: &[(&str, String)],
    operators: &[OperatorSetIdProto],
) -> ModelProto {
    let is_given = |name: &str| given.iter().any(|(given, _)| *given == name);
    let (mut nodes, mut open) = (BTreeMap::new(), vec![value]);
    while let Some(value) = open.pop() {
        if !is_given(value)
            && let Some((node, _)) = graph.producer(value)
            && nodes.insert(node.index(), node.proto()).is_none()
        {
            open.extend(node.reads());
        }
    }
    let nodes: Vec<_> = nodes.into_values().collect();
    let names = given.iter().map(|(value, name)| (*value, name.clone()));
    let mut excerpt = Excerpt::new(&nodes, &[value], names, operators.to_vec());
    for (value, name) in excerpt.inputs {
        let constant =
            graph.initializer(value).map(|constant| TensorProto { name: Some(name), ..constant.clone() });
        excerpt.model.graph.get_or_insert_default().initializer.extend(constant);
    }
    excerpt.model
}

/// Returns a value of numbers that differ, and that depend on `first`. A mask of booleans hides a third of the slots.
fn made_up(element: ElementType, shape: &[usize], first: usize) -> Result<Value, OnnxError> {
    let count = elements(shape);
    // The file may claim any number of heads.
    if count > MAX_VALUES {
        return Value::shaped(element, shape.to_vec());
    }
    let numbers = match element {
        ElementType::Bool => {
            Values::Bools((0..count).map(|number| number.checked_rem(3) != Some(1)).collect())
        }
        _ => {
            let number = |at: usize| {
                to_float(
                    at.wrapping_add(first.wrapping_mul(1_000_003))
                        .wrapping_mul(7919)
                        .checked_rem(PERIOD)
                        .unwrap_or_default(),
                ) / to_float(PERIOD)
                    - 0.5
            };
            Values::Floats((0..count).map(number).collect())
        }
    };
    Value::new(element, shape.to_vec(), Some(numbers))
}

/// Returns a value `[batch, heads, tokens, size]` as `[batch, tokens, heads * size]`.
fn flat(value: &Value) -> Result<Value, OnnxError> {
    const ORDER: [usize; RANK] = [0, 2, 1, 3];
    let steps = strides(&value.shape);
    let shape = ORDER.map(|axis| value.shape.get(axis).copied().unwrap_or_default());
    let steps = ORDER.map(|axis| steps.get(axis).copied().unwrap_or_default());
    let moved = value.data.as_ref().map(|data| data.pick(&walk(&shape, 0, &steps))).transpose()?;
    let [batch, tokens, heads, size] = shape;
    Value::new(value.element, vec![batch, tokens, heads.saturating_mul(size)], moved)
}
