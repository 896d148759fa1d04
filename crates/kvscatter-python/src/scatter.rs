//! `TensorScatter` in one call: prepared, planned and written.

use kvscatter::{Mode, NegativeIndex, OutOfRange};
use pyo3::prelude::*;

use crate::array::Array;
use crate::error::ArgumentNames;
use crate::prepared_scatter::{self, PreparedScatter, ScatterIndices};
use crate::{new_array, options, write};

/// Writes `update` into `cache`, by ONNX TensorScatter-24 in place.
///
/// Args:
///     cache: `[batch, .., capacity, ..]`, of any of TensorScatter's 24 types, dense or strided. It is
///         ONNX's `past_cache`, and becomes its `present_cache`.
///     update: An array with the dimensions of the cache, except for `axis`. That dimension is the number of
///         rows to write, at most `capacity`.
///     write_indices: The slot of each sample's first row, `[batch]`. The default is zeros.
///     axis: The sequence dimension, which can be any but the first.
///     mode: `"linear"`, or `"circular"` to take slots modulo the capacity.
///     lengths: The number of rows of each sample that are not padding, `[batch]`. Padding after them is not
///         written. kvscatter extension; not part of the specification.
///     out_of_range: `"error"`, or `"skip"` to leave a sample that does not fit unchanged. kvscatter
///         extension; not part of the specification.
///     negative_index: In circular mode, `"modulo"`, where -1 is the last slot, or `"reject"` as in ONNX
///         Runtime.
///
/// Returns:
///     The number of samples that were skipped.
///
/// Raises:
///     ElementTypeError: An argument is not an array, TensorScatter does not have its type, the two types
///         differ, or indices are not integers.
///     ShapeError: Ranks or dimensions differ, or the update is longer than the cache.
///     OptionError: The axis does not exist or is the batch, or a mode or policy does not exist.
///     PositionError: A position does not fit, a length exceeds the rows of the update, or there are too few
///         values.
///     ArrayError: The cache is read-only or immutable, or shares memory with itself or another argument.
///
/// >>> import numpy as np
/// >>> cache, update = np.zeros((2, 4, 1), np.float32), np.ones((2, 2, 1), np.float32)
/// >>> kvscatter.tensor_scatter_(cache, update, [1, 3], mode="circular")
/// 0
/// >>> cache.reshape(2, 4)
/// array([[0., 1., 1., 0.],
///        [1., 0., 0., 1.]], dtype=float32)
#[pyfunction]
#[pyo3(signature = (cache, update, write_indices=None, *, axis=-2, mode=Mode::Linear, lengths=None, out_of_range=OutOfRange::Error, negative_index=NegativeIndex::Modulo))]
#[pyo3(text_signature = "(cache, update, write_indices=None, *, axis=-2, mode='linear', \
    lengths=None, out_of_range='error', negative_index='modulo')")]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn tensor_scatter_(
    py: Python<'_>,
    cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
) -> PyResult<usize> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index);
    let indices = ScatterIndices::read(write_indices, lengths)?;
    let cache = Array::written(cache, "cache")?;
    let update = Array::read(update, "update")?;
    let prepared = prepared_scatter::check(py, operator, &cache.form, &update.form, ArgumentNames::InPlace)?;
    let plan = indices.plan(py, &prepared)?;
    write::in_place(py, &plan, &cache, &update, &indices.all())
}

/// Returns `past_cache` with `update` written into it, by ONNX TensorScatter-24 in functional form.
///
/// See `tensor_scatter_` for the arguments. `past_cache` does not change.
///
/// Args:
///     out: A dense array of the shape and type of `past_cache`, which receives the result. It may be
///         `past_cache` itself. The write is then in place.
///
/// Returns:
///     `out`, or a new dense array of the same library as `past_cache`.
///
/// Raises:
///     Error: For the same reasons as `tensor_scatter_`. `ShapeError`, `ElementTypeError` and `ArrayError`
///         are also raised for `out`.
///
/// >>> import numpy as np
/// >>> past, update = np.zeros((1, 4, 1), np.float32), np.ones((1, 2, 1), np.float32)
/// >>> kvscatter.tensor_scatter(past, update, [1]).ravel(), past.any()
/// (array([0., 1., 1., 0.], dtype=float32), np.False_)
#[pyfunction]
#[pyo3(signature = (past_cache, update, write_indices=None, *, axis=-2, mode=Mode::Linear, lengths=None, out=None, negative_index=NegativeIndex::Modulo))]
#[pyo3(text_signature = "(past_cache, update, write_indices=None, *, axis=-2, mode='linear', \
    lengths=None, out=None, negative_index='modulo')")]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn tensor_scatter<'py>(
    py: Python<'py>,
    past_cache: &Bound<'py, PyAny>,
    update: &Bound<'py, PyAny>,
    write_indices: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    lengths: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
) -> PyResult<Bound<'py, PyAny>> {
    let operator = options::tensor_scatter(axis, mode, OutOfRange::Error, negative_index);
    let indices = ScatterIndices::read(write_indices, lengths)?;
    let past = Array::read(past_cache, "past_cache")?;
    let update = Array::read(update, "update")?;
    let prepared =
        prepared_scatter::check(py, operator, &past.form, &update.form, ArgumentNames::Functional)?;
    let plan = indices.plan(py, &prepared)?;
    match out {
        Some(out) => {
            let present = Array::written(out, "out")?;
            if present.is(&past) {
                write::in_place(py, &plan, &present, &update, &indices.all())?;
            } else {
                write::write_present(py, &plan, &past, &update, &present, &indices.all())?;
            }
            Ok(out.clone())
        }
        None => new_array::present(past_cache, &past, |present| {
            write::write_present(py, &plan, &past, &update, present, &[]).map(drop)
        }),
    }
}

/// Writes keys, values and all layers at the same positions. It writes either every pair or none.
///
/// See `tensor_scatter_` for the other arguments.
///
/// Args:
///     pairs: Tuples of a cache and its update. All have the same dtype, shapes and strides.
///
/// Returns:
///     The number of samples that were skipped. It is the same for every pair.
///
/// Raises:
///     Error: For the same reasons as `tensor_scatter_`. `ShapeError` is also raised for a pair that differs
///         from the first, and `ArrayError` for caches that share memory with another array of the call.
#[pyfunction]
#[pyo3(signature = (pairs, write_indices=None, *, axis=-2, mode=Mode::Linear, lengths=None, out_of_range=OutOfRange::Error, negative_index=NegativeIndex::Modulo))]
#[pyo3(text_signature = "(pairs, write_indices=None, *, axis=-2, mode='linear', \
    lengths=None, out_of_range='error', negative_index='modulo')")]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn write_many(
    py: Python<'_>,
    pairs: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
) -> PyResult<usize> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index);
    let indices = ScatterIndices::read(write_indices, lengths)?;
    let pairs = prepared_scatter::pairs(pairs)?;
    let Some(first) = pairs.first() else { return Ok(0) };
    let write = PreparedScatter::like(py, operator, first)?;
    let plan = write.plan(py, &indices)?;
    write.write_many(py, &plan, &indices, &pairs)
}
