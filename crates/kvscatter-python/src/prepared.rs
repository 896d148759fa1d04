//! A write whose shapes are checked: made once per shape, called every step.

use std::sync::Arc;

use kvscatter::{Mode, NegativeIndex, OutOfRange};
use pyo3::prelude::*;

use crate::array::Array;
use crate::plan::Plan;
use crate::prepared_scatter::{PreparedScatter, ScatterIndices};
use crate::{options, prepared_scatter, write};

/// A `TensorScatter` whose shapes, strides and dtype are checked: what `kvscatter.prepare` returns.
///
/// `write(cache, update, write_indices=None, lengths=None)` writes in place and returns the number of samples skipped. It
/// takes arrays of the dtype, shapes and strides that it was prepared for, of any library, and the positions of
/// `tensor_scatter_`. Any number of threads may share it. Copying returns the same object. It cannot be pickled, so another
/// process prepares another one.
///
/// Raises:
///     ShapeError, ElementTypeError: An array of another shape or stride, of another dtype.
///     PositionError, ArrayError: As `tensor_scatter_`.
#[pyclass(frozen, name = "Prepared", module = "kvscatter")]
pub(crate) struct PyPrepared(Arc<PreparedScatter>);

/// Checks everything about a `TensorScatter` but its positions: once per shape, for calls in a loop.
///
/// Args:
///     past_cache: An array as the cache will be, of which nothing is kept but its form; or its shape.
///     update: The same for the update. Either both are arrays, or both are shapes, of dense arrays.
///     axis, mode, out_of_range, negative_index: Those of `tensor_scatter_`.
///     dtype: The type of the elements, where shapes are given.
///
/// Returns:
///     A `Prepared`: call it with arrays of this form.
///
/// Raises:
///     ElementTypeError, ShapeError, OptionError: As `tensor_scatter_`; `OptionError` for a `dtype` that is missing, or
///         beside arrays.
///     ArrayError: A layout that cannot be written.
///
/// >>> import numpy as np
/// >>> cache, update = np.zeros((2, 4, 1), np.float32), np.ones((2, 1, 1), np.float32)
/// >>> write = kvscatter.prepare(cache, update)
/// >>> [write(cache, update, [step, step + 1]) for step in range(2)]
/// [0, 0]
/// >>> cache.reshape(2, 4)
/// array([[1., 1., 0., 0.],
///        [0., 1., 1., 0.]], dtype=float32)
#[pyfunction]
#[pyo3(signature = (past_cache, update, *, axis=-2, mode=Mode::Linear, out_of_range=OutOfRange::Error, negative_index=NegativeIndex::Modulo, dtype=None))]
#[pyo3(text_signature = "(past_cache, update, *, axis=-2, mode='linear', \
    out_of_range='error', negative_index='modulo', dtype=None)")]
#[expect(clippy::too_many_arguments, reason = "the attributes of the operator, by keyword")]
pub(crate) fn prepare(
    py: Python<'_>,
    past_cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyPrepared> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index);
    PreparedScatter::new(py, operator, past_cache, update, dtype).map(PyPrepared)
}

#[pymethods]
impl PyPrepared {
    /// Writes `update` into `cache`, in place; gives the samples skipped.
    #[pyo3(signature = (cache, update, write_indices=None, lengths=None))]
    fn __call__(
        &self,
        py: Python<'_>,
        cache: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let indices = ScatterIndices::of(write_indices, lengths)?;
        let plan = self.0.plan(py, &indices)?;
        self.0.in_place(py, &plan, &indices.all(), cache, update)
    }

    /// Writes every pair of a cache and its update at the same positions, or none, as `write_many` does; gives the
    /// number of samples skipped.
    #[pyo3(signature = (pairs, write_indices=None, lengths=None))]
    fn many(
        &self,
        py: Python<'_>,
        pairs: &Bound<'_, PyAny>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let indices = ScatterIndices::of(write_indices, lengths)?;
        let pairs = prepared_scatter::pairs(pairs)?;
        let plan = self.0.plan(py, &indices)?;
        self.0.write_many(py, &plan, &indices, &pairs)
    }

    /// The functional form into memory that exists: `out`, dense and of the cache's shape and dtype, becomes `past_cache`
    /// with the update in it; gives the number of samples skipped.
    #[pyo3(signature = (past_cache, update, out, write_indices=None, lengths=None))]
    fn into(
        &self,
        py: Python<'_>,
        past_cache: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let indices = ScatterIndices::of(write_indices, lengths)?;
        let plan = self.0.plan(py, &indices)?;
        let past_cache = Array::read(past_cache, "past_cache")?;
        self.0.cache.form.check_prepared(&past_cache, 0)?;
        let update = Array::read(update, "update")?;
        self.0.update.form.check_prepared(&update, 0)?;
        let out = Array::written(out, "out")?;
        write::write_present(py, &plan, &past_cache, &update, &out, &indices.all())
    }

    /// A call of this, checked but not made: to be looked at, and carried out any number of times.
    #[pyo3(signature = (write_indices=None, lengths=None))]
    fn plan(
        &self,
        py: Python<'_>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Plan> {
        Plan::new(py, Arc::clone(&self.0), write_indices, lengths)
    }

    /// Nothing about it ever changes.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __repr__(&self) -> String {
        let PreparedScatter { cache, update, .. } = &*self.0;
        format!("<kvscatter.Prepared: {} into {}>", update.form, cache.form)
    }
}

impl PyPrepared {
    pub(crate) fn shared(&self) -> &Arc<PreparedScatter> {
        &self.0
    }
}
