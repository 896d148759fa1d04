//! A write whose shapes have been checked. It is prepared once per shape and called in every step.

use std::sync::Arc;

use kvscatter::{Mode, NegativeIndex, OutOfRange};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use crate::array::Array;
use crate::error::ArgumentNames;
use crate::plan::Plan;
use crate::prepared_scatter::{PickledScatter, PreparedScatter, ScatterIndices, restore_function};
use crate::prepared_tensor::PickledTensor;
use crate::{options, prepared_scatter, torch, write};

/// A `TensorScatter` whose shapes, strides and dtype have been checked, as `kvscatter.prepare` returns it.
///
/// Calling it as `prepared(cache, update, write_indices=None, lengths=None)` writes in place, like `write`. The
/// arrays can be of any library, with the dtype, shapes and strides that the write was prepared for. The positions
/// are those of `tensor_scatter_`. Any number of threads may share a prepared write. Copying returns the same
/// object. It can be pickled.
///
/// Raises:
///     ShapeError, ElementTypeError: An array has another shape or other strides, or another dtype.
///     PositionError, ArrayError: For the same reasons as `tensor_scatter_`.
#[pyclass(frozen, name = "Prepared", module = "kvscatter")]
pub(crate) struct PyPrepared(Arc<PreparedScatter>);

/// Checks everything about a `TensorScatter` except its positions. Call it once per shape, before a loop.
///
/// Args:
///     cache: An array like the cache, or its shape. Only the form of the array is kept.
///     update: An array like the update, or its shape. Either both are arrays, or both are shapes of dense
///         arrays.
///     axis, mode, out_of_range, negative_index: See `tensor_scatter_`.
///     dtype: The type of the elements. It is required with shapes, and an error with arrays.
///
/// Returns:
///     A `Prepared`, which is called with arrays of this form.
///
/// Raises:
///     ElementTypeError, ShapeError, OptionError: For the same reasons as `tensor_scatter_`. `OptionError` is
///         also raised if `dtype` is missing with shapes or given with arrays.
///     ArrayError: The layout cannot be written.
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
#[pyo3(signature = (cache, update, *, axis=-2, mode=Mode::Linear, out_of_range=OutOfRange::Error, negative_index=NegativeIndex::Modulo, dtype=None))]
#[pyo3(text_signature = "(cache, update, *, axis=-2, mode='linear', \
    out_of_range='error', negative_index='modulo', dtype=None)")]
#[expect(clippy::too_many_arguments, reason = "the attributes of the operator, by keyword")]
pub(crate) fn prepare(
    py: Python<'_>,
    cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyPrepared> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index);
    PreparedScatter::new(py, operator, cache, update, dtype).map(PyPrepared)
}

/// Prepares a pickled write again.
#[pyfunction]
pub(crate) fn restore_prepared(
    py: Python<'_>,
    cache: PickledTensor,
    update: PickledTensor,
    axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
) -> PyResult<PyPrepared> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index);
    PreparedScatter::restore(py, operator, cache, update).map(PyPrepared)
}

/// Writes each update into its cache, all of them or none. Every sample begins at the same slot.
///
/// Each write is a prepared write, the cache and the update. Returns `False`, and writes nothing, if an array is not
/// plain memory in the prepared form, so that only `Prepared.write` can say what is wrong with it.
#[pyfunction]
pub(crate) fn write_rows(
    py: Python<'_>,
    writes: Vec<(Bound<'_, PyPrepared>, Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    #[pyo3(from_py_with = options::slot)] slot: i64,
) -> PyResult<bool> {
    if !writes.iter().all(|(prepared, cache, update)| prepared.get().0.are_plain(cache, update)) {
        return Ok(false);
    }
    let mut memories = SmallVec::<[_; 4]>::new();
    let (mut starts, mut none) = (SmallVec::<[i64; 16]>::new(), SmallVec::<[i64; 16]>::new());
    for (prepared, cache, update) in &writes {
        let Some(memory) = prepared.get().0.memories(cache, update) else { return Ok(false) };
        memories.push(memory);
        let samples = prepared.get().0.prepared.geometry().cache_batch();
        starts.resize(samples, slot);
        none.resize(samples, 0);
    }
    // A write of no rows raises all errors of the write but those of its slots, which are the same for all.
    for lengths in [Some(none.as_slice()), None] {
        for ((prepared, ..), &[cache, update]) in writes.iter().zip(&memories) {
            let write = &prepared.get().0.prepared;
            let samples = write.geometry().cache_batch();
            let starts = starts.get(..samples).unwrap_or_default();
            let plan = match lengths {
                Some(lengths) => write.plan_with_lengths(starts, lengths.get(..samples).unwrap_or_default()),
                None => write.plan(starts),
            };
            let plan = plan.map_err(|refused| ArgumentNames::InPlace.raise(py, refused))?;
            write::in_place_raw(py, &plan, cache, update)?;
        }
    }
    let written: Vec<_> = writes
        .iter()
        .map(|(_, cache, _)| cache)
        .filter(|cache| !cache.is_instance_of::<PyUntypedArray>())
        .collect();
    torch::note_all_written(&PyTuple::new(py, written)?)?;
    Ok(true)
}

#[pymethods]
impl PyPrepared {
    /// Writes `update` into `cache` in place and returns the number of samples skipped. Calling the object does the
    /// same.
    #[pyo3(signature = (cache, update, write_indices=None, lengths=None))]
    fn write(
        &self,
        py: Python<'_>,
        cache: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let indices = ScatterIndices::read(write_indices, lengths)?;
        let plan = self.0.plan(py, &indices)?;
        self.0.in_place(py, &plan, &indices.all(), cache, update)
    }

    /// Writes every pair of a cache and its update at the same positions, or none, like `write_many`.
    ///
    /// Returns the number of samples skipped.
    #[pyo3(signature = (pairs, write_indices=None, lengths=None))]
    fn many(
        &self,
        py: Python<'_>,
        pairs: &Bound<'_, PyAny>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let indices = ScatterIndices::read(write_indices, lengths)?;
        let pairs = prepared_scatter::pairs(pairs)?;
        let plan = self.0.plan(py, &indices)?;
        self.0.write_many(py, &plan, &indices, &pairs)
    }

    /// Fills `out` with `past_cache` and writes the update into it, like `tensor_scatter` with `out`.
    ///
    /// `out` is dense and has the cache's shape and dtype. Returns the number of samples skipped.
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
        let indices = ScatterIndices::read(write_indices, lengths)?;
        let plan = self.0.plan(py, &indices)?;
        let past_cache = Array::read(past_cache, "past_cache")?;
        self.0.cache.form.check_prepared(&past_cache, 0)?;
        let update = Array::read(update, "update")?;
        self.0.update.form.check_prepared(&update, 0)?;
        let out = Array::written(out, "out")?;
        write::write_present(py, &plan, &past_cache, &update, &out, &indices.all())
    }

    /// Checks a call without writing. The returned plan can be inspected, and executed any number of times.
    #[pyo3(signature = (write_indices=None, lengths=None))]
    fn plan(
        &self,
        py: Python<'_>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Plan> {
        Plan::new(py, Arc::clone(&self.0), write_indices, lengths)
    }

    /// Returns the same object, because it never changes.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, PickledScatter)> {
        Ok((restore_function(py)?, self.0.state()))
    }

    fn __repr__(&self) -> String {
        let PreparedScatter { cache, update, .. } = &*self.0;
        format!("<kvscatter.Prepared: {} into {}>", update.form, cache.form)
    }
}

impl PyPrepared {
    /// Lets Python call the objects of this class.
    ///
    /// A slot has no signature: `signature(write)` and `help(write)` would show `(*args, **kwargs)`. This costs no
    /// time.
    pub(crate) fn make_callable(py: Python<'_>) -> PyResult<()> {
        let class = py.get_type::<Self>();
        class.setattr("__call__", class.getattr("write")?)
    }

    pub(crate) fn shared(&self) -> &Arc<PreparedScatter> {
        &self.0
    }
}
