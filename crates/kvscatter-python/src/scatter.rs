//! `TensorScatter` in one call: prepared, planned and written.

use pyo3::prelude::*;

use crate::array::Array;
use crate::prepared::{self, CallIndices, Write};
use crate::{fresh, options, write};

/// Writes `update` into `cache`, in place; gives the number of samples skipped.
#[pyfunction]
#[pyo3(signature = (cache, update, write_indices=None, *, axis=-2, mode="linear", lengths=None, out_of_range="error", negative_index="modulo"))]
#[pyo3(text_signature = "(cache, update, write_indices=None, *, axis=-2, mode='linear', \
    lengths=None, out_of_range='error', negative_index='modulo')")]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn tensor_scatter_(
    py: Python<'_>,
    cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    axis: i64,
    mode: &str,
    lengths: Option<&Bound<'_, PyAny>>,
    out_of_range: &str,
    negative_index: &str,
) -> PyResult<usize> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index)?;
    let indices = CallIndices::of(write_indices, lengths)?;
    let cache = Array::written(cache, "past_cache")?;
    let update = Array::read(update, "update")?;
    let prepared = prepared::check(py, operator, &cache, &update)?;
    let plan = indices.plan(py, &prepared)?;
    write::in_place(py, &plan, &cache, &update, &indices.all())
}

/// `past_cache` with `update` written into it, as a new array or in `out`.
#[pyfunction]
#[pyo3(signature = (past_cache, update, write_indices=None, *, axis=-2, mode="linear", lengths=None, out=None, negative_index="modulo"))]
#[pyo3(text_signature = "(past_cache, update, write_indices=None, *, axis=-2, mode='linear', \
    lengths=None, out=None, negative_index='modulo')")]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn tensor_scatter<'py>(
    py: Python<'py>,
    past_cache: &Bound<'py, PyAny>,
    update: &Bound<'py, PyAny>,
    write_indices: Option<&Bound<'py, PyAny>>,
    axis: i64,
    mode: &str,
    lengths: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    negative_index: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let operator = options::tensor_scatter(axis, mode, "error", negative_index)?;
    let indices = CallIndices::of(write_indices, lengths)?;
    let past = Array::read(past_cache, "past_cache")?;
    let update = Array::read(update, "update")?;
    let prepared = prepared::check(py, operator, &past, &update)?;
    let plan = indices.plan(py, &prepared)?;
    match out {
        Some(out) => {
            let present = Array::written(out, "out")?;
            if present.is(&past) {
                write::in_place(py, &plan, &present, &update, &indices.all())?;
            } else {
                write::into_present(py, &plan, &past, &update, &present, &indices.all())?;
            }
            Ok(out.clone())
        }
        None => fresh::present(past_cache, &past, |present| {
            write::into_present(py, &plan, &past, &update, present, &[]).map(drop)
        }),
    }
}

/// Writes every pair of a cache and its update at the same positions, or none; gives the number of samples skipped.
#[pyfunction]
#[pyo3(signature = (pairs, write_indices=None, *, axis=-2, mode="linear", lengths=None, out_of_range="error", negative_index="modulo"))]
#[pyo3(text_signature = "(pairs, write_indices=None, *, axis=-2, mode='linear', \
    lengths=None, out_of_range='error', negative_index='modulo')")]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn in_place_many(
    py: Python<'_>,
    pairs: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    axis: i64,
    mode: &str,
    lengths: Option<&Bound<'_, PyAny>>,
    out_of_range: &str,
    negative_index: &str,
) -> PyResult<usize> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index)?;
    let indices = CallIndices::of(write_indices, lengths)?;
    let pairs = prepared::pairs(pairs)?;
    let Some((cache, update)) = pairs.first() else { return Ok(0) };
    let write = Write::new(py, operator, cache, update, None)?;
    let plan = write.plan(py, &indices)?;
    write.in_place_many(py, &plan, &indices, &pairs)
}
