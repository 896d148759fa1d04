//! The oracle on indices: it returns the origin of each element of the present, and the rule that a call
//! breaks.
//!
//! The oracle shares nothing with the write that is tested against it. Python gathers the elements, so the
//! oracle never sees the values.

use std::fmt;

use kvscatter_oracle::cases::{Call, Element};
use kvscatter_oracle::{
    NegativeIndex, OutOfRange, Outcome, Refusal, Tensor, ascend, onnx, tensorrt, tensorrt::UpdateForm,
};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};

use crate::error::{Class, Field, raise};

/// The maximum number of elements of cache and update together, or rows of an empty update, that the oracle
/// accepts. It visits them one at a time and needs 24 bytes for each.
const MAX_ELEMENTS: usize = 1 << 27;

/// The oracle's answer to a call.
pub(crate) struct Answer {
    /// The index in the update of every element of the present, in row-major order, or -1 where the past
    /// stays.
    outcome: Result<Outcome<i64>, Refusal>,
}

/// Becomes `(origins, skipped, None)` or `(None, 0, (rule, message, fields))`.
impl<'py> IntoPyObject<'py> for Answer {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self.outcome {
            Ok(Outcome { present, skipped }) => {
                (PyArray1::from_vec(py, present), skipped, py.None()).into_pyobject(py)
            }
            Err(refusal) => {
                let (rule, fields) = broken_rule(&refusal);
                let message = message(rule, &fields);
                (py.None(), 0, (rule, message, fields.into_py_dict(py)?)).into_pyobject(py)
            }
        }
    }
}

impl Answer {
    /// Runs the oracle. `elements` are the element types of the cache and of the update. Returns [`TooLarge`] if the
    /// oracle would visit more than [`MAX_ELEMENTS`].
    pub(crate) fn compute(
        call: &Call,
        elements: [&Element; 2],
        cache_shape: &[usize],
        update_shape: &[usize],
    ) -> Result<Self, TooLarge> {
        let (cache_len, update_len) = (elements_of(cache_shape)?, elements_of(update_shape)?);
        let rows = if update_len == 0 { claimed_rows(call, cache_shape, update_shape) } else { 0 };
        if [cache_len, update_len, rows].into_iter().fold(0, usize::saturating_add) > MAX_ELEMENTS {
            return Err(TooLarge);
        }
        let past = vec![-1; cache_len];
        let new: Vec<i64> = (0..).take(update_len).collect();
        let outcome = call
            .check_elements(elements)
            .and_then(|()| call.run(Tensor::new(&past, cache_shape), Tensor::new(&new, update_shape)));
        Ok(Self { outcome })
    }
}

/// The call is larger than the oracle accepts.
pub(crate) struct TooLarge;

/// Returns the number of elements of a shape. The product of all dimensions that are not 0 must not
/// overflow, even if one dimension is 0, because the oracle multiplies them in any order.
fn elements_of(shape: &[usize]) -> Result<usize, TooLarge> {
    let product =
        shape.iter().filter(|&&size| size > 0).try_fold(1_usize, |all, &size| all.checked_mul(size));
    let product = product.filter(|&product| isize::try_from(product).is_ok()).ok_or(TooLarge)?;
    Ok(if shape.contains(&0) { 0 } else { product })
}

/// Returns the number of slots that the oracle lists for an update without elements, whose shape can claim
/// any number of rows.
fn claimed_rows(call: &Call, cache_shape: &[usize], update_shape: &[usize]) -> usize {
    let batch = |indices: usize| indices.min(cache_shape.iter().copied().max().unwrap_or(0));
    let longest = || update_shape.iter().skip(1).copied().max().unwrap_or(0);
    let each = |lengths: &mut dyn Iterator<Item = i64>| {
        // Longer samples are errors and have no slots.
        let capacity = cache_shape.get(2).copied().unwrap_or(0);
        let rows = lengths.filter_map(|length| usize::try_from(length).ok()).filter(|&rows| rows <= capacity);
        rows.fold(0, usize::saturating_add)
    };
    match call {
        Call::TensorScatter { write_indices, lengths, .. } => {
            let given = write_indices.as_ref().or(lengths.as_ref()).map_or(0, Vec::len);
            batch(given).saturating_mul(longest())
        }
        Call::KvCacheUpdate { update_lengths: Some(ends), .. } => {
            each(&mut ends.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])))
        }
        Call::KvCacheUpdate { write_indices, .. } => batch(write_indices.len()).saturating_mul(longest()),
        Call::KvCacheOperation { seq_len, .. } => each(&mut seq_len.iter().map(|&rows| i64::from(rows))),
    }
}

/// The value of a field of a refusal.
#[derive(IntoPyObject)]
enum Value<'a> {
    Number(i128),
    Name(&'a str),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(text) => write!(f, "{text:?}"),
        }
    }
}

fn number(number: impl Into<i128>) -> Value<'static> {
    Value::Number(number.into())
}

fn size(size: usize) -> Value<'static> {
    // Every size fits, because no size is wider than 64 bits.
    Value::Number(i128::try_from(size).unwrap_or(i128::MAX))
}

/// Returns the name of the rule that a call broke, with the offending numbers.
fn broken_rule(refusal: &Refusal) -> (&'static str, Vec<(&'static str, Value<'_>)>) {
    use Value::Name;

    match refusal {
        Refusal::TypesDiffer { cache, update } => {
            ("types_differ", vec![("cache", Name(cache)), ("update", Name(update))])
        }
        Refusal::UnsupportedType { element } => ("unsupported_type", vec![("element", Name(element))]),
        Refusal::Mode { name } => ("mode", vec![("name", Name(name))]),
        Refusal::CacheRank { rank } => ("cache_rank", vec![("rank", size(*rank))]),
        Refusal::UpdateRank { rank } => ("update_rank", vec![("rank", size(*rank))]),
        Refusal::Axis { axis, rank } => ("axis", vec![("axis", number(*axis)), ("rank", size(*rank))]),
        Refusal::Dimension { dimension, cache, update } => {
            let fields =
                vec![("dimension", size(*dimension)), ("cache", size(*cache)), ("update", size(*update))];
            ("dimension", fields)
        }
        Refusal::UpdateBatch { argument, cache, update } => {
            let fields =
                vec![("argument", Name(argument)), ("cache", size(*cache)), ("update", size(*update))];
            ("update_batch", fields)
        }
        Refusal::UpdateTooLong { capacity, rows } => {
            ("update_too_long", vec![("capacity", size(*capacity)), ("rows", size(*rows))])
        }
        Refusal::IndexCount { argument, given, needed } => {
            let fields =
                vec![("argument", Name(argument)), ("given", size(*given)), ("needed", size(*needed))];
            ("index_count", fields)
        }
        Refusal::Length { sample, length, rows } => {
            ("length", vec![("sample", size(*sample)), ("length", number(*length)), ("rows", size(*rows))])
        }
        Refusal::NegativeStart { sample, start } => {
            ("negative_start", vec![("sample", size(*sample)), ("start", number(*start))])
        }
        Refusal::OutOfRange { sample, start, rows, capacity } => {
            let (sample, start) = (("sample", size(*sample)), ("start", number(*start)));
            ("out_of_range", vec![sample, start, ("rows", size(*rows)), ("capacity", size(*capacity))])
        }
        Refusal::UpdateLengthsMissing => ("update_lengths_missing", vec![]),
        Refusal::UpdateLengthsUnexpected => ("update_lengths_unexpected", vec![]),
        Refusal::UpdateLengthsFirst { first } => ("update_lengths_first", vec![("first", number(*first))]),
        Refusal::UpdateLengthsDecrease { sample } => {
            ("update_lengths_decrease", vec![("sample", size(*sample))])
        }
        Refusal::UpdateLengthsTooLong { sample, rows, capacity } => {
            let fields =
                vec![("sample", size(*sample)), ("rows", size(*rows)), ("capacity", size(*capacity))];
            ("update_lengths_too_long", fields)
        }
        Refusal::UpdateLengthsTotal { total, tokens } => {
            ("update_lengths_total", vec![("total", size(*total)), ("tokens", size(*tokens))])
        }
        Refusal::LayerId { layer_id, layers } => {
            ("layer_id", vec![("layer_id", number(*layer_id)), ("layers", size(*layers))])
        }
        Refusal::SeqLen { sample, seq_len } => {
            ("seq_len", vec![("sample", size(*sample)), ("seq_len", number(*seq_len))])
        }
        Refusal::SeqLenTotal { total, tokens } => {
            ("seq_len_total", vec![("total", size(*total)), ("tokens", size(*tokens))])
        }
    }
}

/// Writes for example `out of range: sample = 0, start = 7, rows = 2, capacity = 8`.
fn message(rule: &str, fields: &[(&str, Value<'_>)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let separator = if fields.is_empty() { "" } else { ": " };
    format!("{}{separator}{}", rule.replace('_', " "), fields.join(", "))
}

/// The two tensors of a call: the ONNX names of their element types, and their shapes.
type Tensors = ([String; 2], Vec<usize>, Vec<usize>);

fn ask(py: Python<'_>, call: &Call, (names, cache, update): &Tensors) -> PyResult<Answer> {
    let element = |name: &String| {
        Element::named(name).ok_or_else(|| {
            let (message, fields) = (
                format!("{name} is not an element type of the oracle"),
                [("element", Field::Name(name.clone()))],
            );
            raise(py, Class::ElementType, "element_type", None, message, &fields)
        })
    };
    let elements = [element(&names[0])?, element(&names[1])?];
    let answer = py.detach(|| Answer::compute(call, elements, cache, update));
    answer.map_err(|TooLarge| {
        let message = format!("the reference visits elements one by one and takes at most {MAX_ELEMENTS}");
        raise(py, Class::Shape, "too_large", None, message, &[("max", MAX_ELEMENTS.into())])
    })
}

fn out_of_range(skip: bool) -> OutOfRange {
    if skip { OutOfRange::SkipSample } else { OutOfRange::Error }
}

/// Runs the oracle for ONNX `TensorScatter`.
#[pyfunction]
pub(crate) fn oracle_tensor_scatter(
    py: Python<'_>,
    tensors: Tensors,
    write_indices: Option<Vec<i64>>,
    axis: i64,
    mode: String,
    lengths: Option<Vec<i64>>,
    policies: (bool, bool),
) -> PyResult<Answer> {
    let (skip, reject) = policies;
    let negative_index = if reject { NegativeIndex::Reject } else { NegativeIndex::Modulo };
    let operator = onnx::TensorScatter { axis, mode, out_of_range: out_of_range(skip), negative_index };
    ask(py, &Call::TensorScatter { operator, write_indices, lengths }, &tensors)
}

/// Runs the oracle for TensorRT `KVCacheUpdate`, packed if there are `update_lengths`.
#[pyfunction]
pub(crate) fn oracle_kv_cache_update(
    py: Python<'_>,
    tensors: Tensors,
    write_indices: Vec<i64>,
    update_lengths: Option<Vec<i32>>,
    lengths: Option<Vec<i64>>,
    skip: bool,
) -> PyResult<Answer> {
    let update_form = if update_lengths.is_some() { UpdateForm::Packed } else { UpdateForm::Padded };
    let operator = tensorrt::KvCacheUpdate { update_form, out_of_range: out_of_range(skip) };
    ask(py, &Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths }, &tensors)
}

/// Runs the oracle for Ascend ATB `KVCacheOperation`.
#[pyfunction]
pub(crate) fn oracle_kv_cache_operation(
    py: Python<'_>,
    tensors: Tensors,
    layer_id: Vec<i32>,
    token_offset: Vec<i32>,
    seq_len: Vec<i32>,
    lengths: Option<Vec<i64>>,
    skip: bool,
) -> PyResult<Answer> {
    let operator = ascend::KvCacheOperation { out_of_range: out_of_range(skip) };
    ask(py, &Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths }, &tensors)
}
