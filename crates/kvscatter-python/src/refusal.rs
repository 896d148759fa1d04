//! Converts the oracle's refusals to rule names with their numbers.

use std::fmt;

use kvscatter_oracle::Refusal;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// The rule that a call broke.
pub(crate) struct BrokenRule<'a> {
    rule: &'static str,
    fields: Vec<(&'static str, Value<'a>)>,
}

/// The value of a field.
enum Value<'a> {
    Number(i128),
    Name(&'a str),
}

impl<'a> BrokenRule<'a> {
    pub(crate) fn of(refusal: &'a Refusal) -> Self {
        match refusal {
            Refusal::TypesDiffer { cache, update } => {
                Self::new("types_differ").name("cache", cache).name("update", update)
            }
            Refusal::UnsupportedType { element } => Self::new("unsupported_type").name("element", element),
            Refusal::Mode { name } => Self::new("mode").name("name", name),
            Refusal::CacheRank { rank } => Self::new("cache_rank").size("rank", *rank),
            Refusal::UpdateRank { rank } => Self::new("update_rank").size("rank", *rank),
            Refusal::Axis { axis, rank } => Self::new("axis").number("axis", *axis).size("rank", *rank),
            Refusal::Dimension { dimension, cache, update } => Self::new("dimension").sizes([
                ("dimension", *dimension),
                ("cache", *cache),
                ("update", *update),
            ]),
            Refusal::UpdateBatch { argument, cache, update } => Self::new("update_batch")
                .name("argument", argument)
                .size("cache", *cache)
                .size("update", *update),
            Refusal::UpdateTooLong { capacity, rows } => {
                Self::new("update_too_long").size("capacity", *capacity).size("rows", *rows)
            }
            Refusal::IndexCount { argument, given, needed } => Self::new("index_count")
                .name("argument", argument)
                .size("given", *given)
                .size("needed", *needed),
            Refusal::Length { sample, length, rows } => {
                Self::new("length").size("sample", *sample).number("length", *length).size("rows", *rows)
            }
            Refusal::NegativeStart { sample, start } => {
                Self::new("negative_start").size("sample", *sample).number("start", *start)
            }
            Refusal::OutOfRange { sample, start, rows, capacity } => Self::new("out_of_range")
                .size("sample", *sample)
                .number("start", *start)
                .size("rows", *rows)
                .size("capacity", *capacity),
            Refusal::UpdateLengthsMissing => Self::new("update_lengths_missing"),
            Refusal::UpdateLengthsUnexpected => Self::new("update_lengths_unexpected"),
            Refusal::UpdateLengthsFirst { first } => {
                Self::new("update_lengths_first").number("first", *first)
            }
            Refusal::UpdateLengthsDecrease { sample } => {
                Self::new("update_lengths_decrease").size("sample", *sample)
            }
            Refusal::UpdateLengthsTooLong { sample, rows, capacity } => Self::new("update_lengths_too_long")
                .sizes([("sample", *sample), ("rows", *rows), ("capacity", *capacity)]),
            Refusal::UpdateLengthsTotal { total, tokens } => {
                Self::new("update_lengths_total").size("total", *total).size("tokens", *tokens)
            }
            Refusal::LayerId { layer_id, layers } => {
                Self::new("layer_id").number("layer_id", *layer_id).size("layers", *layers)
            }
            Refusal::SeqLen { sample, seq_len } => {
                Self::new("seq_len").size("sample", *sample).number("seq_len", *seq_len)
            }
            Refusal::SeqLenTotal { total, tokens } => {
                Self::new("seq_len_total").size("total", *total).size("tokens", *tokens)
            }
        }
    }

    fn new(rule: &'static str) -> Self {
        Self { rule, fields: Vec::new() }
    }

    fn number(mut self, field: &'static str, value: impl Into<i128>) -> Self {
        self.fields.push((field, Value::Number(value.into())));
        self
    }

    fn size(mut self, field: &'static str, size: usize) -> Self {
        // Every size fits, because no size is wider than 64 bits.
        self.fields.push((field, Value::Number(i128::try_from(size).unwrap_or(i128::MAX))));
        self
    }

    fn sizes<const N: usize>(self, sizes: [(&'static str, usize); N]) -> Self {
        sizes.into_iter().fold(self, |rule, (field, size)| rule.size(field, size))
    }

    fn name(mut self, field: &'static str, value: &'a str) -> Self {
        self.fields.push((field, Value::Name(value)));
        self
    }
}

/// Writes for example `out of range: sample = 0, start = 7, rows = 2, capacity = 8`.
impl fmt::Display for BrokenRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule.replace('_', " "))?;
        for (index, (name, value)) in self.fields.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { ", " })?;
            match value {
                Value::Number(number) => write!(f, "{name} = {number}")?,
                Value::Name(text) => write!(f, "{name} = {text:?}")?,
            }
        }
        Ok(())
    }
}

/// Becomes `(rule, message, fields)`.
impl<'py> IntoPyObject<'py> for BrokenRule<'_> {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let fields = PyDict::new(py);
        for (name, value) in &self.fields {
            match value {
                Value::Number(number) => fields.set_item(name, number)?,
                Value::Name(text) => fields.set_item(name, text)?,
            }
        }
        (self.rule, self.to_string(), fields).into_pyobject(py)
    }
}
