//! Checked shapes of a `TensorScatter`, and the positions of its calls.

use std::sync::Arc;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{RawBuffer, WritePlan};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::array::{Access, Array, Form};
use crate::error::ArgumentNames;
use crate::failure::{Failure, class_name};
use crate::indices::Indices;
use crate::prepared_tensor::{PickledTensor, PreparedTensor};
use crate::{options, torch, write};

/// The part of a prepared write that everything made from it shares.
pub(crate) struct PreparedScatter {
    /// The sequence dimension, counted from the front, for pickles.
    axis: usize,
    pub(crate) prepared: kvscatter::Prepared,
    pub(crate) cache: PreparedTensor,
    pub(crate) update: PreparedTensor,
}

/// Checks everything about the shapes of a cache and an update.
pub(crate) fn check(
    py: Python<'_>,
    operator: TensorScatter,
    cache: &Form,
    update: &Form,
    names: ArgumentNames,
) -> PyResult<kvscatter::Prepared> {
    update.check_same_element("update", cache)?;
    operator
        .prepare(cache.element.stored(), cache.layout(), update.layout())
        .map_err(|refused| names.raise(py, refused))
}

/// What a pickle of a prepared write contains.
pub(crate) type PickledScatter =
    (PickledTensor, PickledTensor, usize, &'static str, &'static str, &'static str);

/// Returns the function that prepares a pickled write again.
pub(crate) fn restore_function(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("kvscatter._native")?.getattr("restore_prepared")
}

/// A cache and its update.
type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

pub(crate) fn pairs<'py>(pairs: &Bound<'py, PyAny>) -> PyResult<Vec<Pair<'py>>> {
    let pairs = pairs.try_iter()?.enumerate().map(|(index, pair)| {
        let pair = pair?;
        let not_a_pair =
            |_| Failure::NotAPair { argument: "pairs", place: index, class: class_name(&pair.get_type()) };
        Ok(pair.extract().map_err(not_a_pair)?)
    });
    pairs.collect()
}

/// The positions of one call.
pub(crate) struct ScatterIndices {
    starts: Indices,
    lengths: Indices,
}

impl ScatterIndices {
    pub(crate) fn read(
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            starts: Indices::read(write_indices, "write_indices")?,
            lengths: Indices::read(lengths, "lengths")?,
        })
    }

    /// Checks every position.
    pub(crate) fn plan<'a>(
        &'a self,
        py: Python<'_>,
        write: &'a kvscatter::Prepared,
    ) -> PyResult<WritePlan<'a>> {
        write
            .plan_with_lengths(self.starts.starts(), self.lengths.lengths())
            .map_err(|refused| ArgumentNames::Functional.raise(py, refused))
    }

    pub(crate) fn all(&self) -> [&Indices; 2] {
        [&self.starts, &self.lengths]
    }
}

impl PreparedScatter {
    /// Prepares a write for arrays like these, or for their shapes.
    pub(crate) fn new(
        py: Python<'_>,
        operator: TensorScatter,
        cache: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arc<Self>> {
        let tensors = (
            PreparedTensor::from_object(cache, "cache", dtype)?,
            PreparedTensor::from_object(update, "update", dtype)?,
        );
        Self::of_tensors(py, operator, tensors).map(Arc::new)
    }

    /// Prepares a write for more arrays like this cache and this update.
    pub(crate) fn like(
        py: Python<'_>,
        operator: TensorScatter,
        (cache, update): &Pair<'_>,
    ) -> PyResult<Self> {
        let cache = PreparedTensor::from_array(Array::written(cache, "cache")?);
        let update = PreparedTensor::from_array(Array::read(update, "update")?);
        Self::of_tensors(py, operator, (cache, update))
    }

    fn of_tensors(
        py: Python<'_>,
        operator: TensorScatter,
        (cache, update): (PreparedTensor, PreparedTensor),
    ) -> PyResult<Self> {
        let names = ArgumentNames::InPlace;
        let prepared = check(py, operator, &cache.form, &update.form, names)?;
        let axis =
            operator.resolve_axis(cache.form.shape.len()).map_err(|refused| names.raise(py, refused))?;
        Ok(Self { axis, prepared, cache, update })
    }

    /// Returns `true` if both are for arrays of the same forms and along the same dimension.
    pub(crate) fn has_forms_of(&self, other: &Self) -> bool {
        self.axis == other.axis
            && self.cache.form == other.cache.form
            && self.update.form == other.update.form
    }

    /// Returns what [`restore`](Self::restore) needs, for pickle.
    pub(crate) fn state(&self) -> PickledScatter {
        let mode = self.prepared.mode().name();
        let out_of_range = options::out_of_range_name(self.prepared.out_of_range());
        let negative_index = options::negative_index_name(self.prepared.negative_index());
        (self.cache.pickled(), self.update.pickled(), self.axis, mode, out_of_range, negative_index)
    }

    pub(crate) fn restore(
        py: Python<'_>,
        operator: TensorScatter,
        cache: PickledTensor,
        update: PickledTensor,
    ) -> PyResult<Arc<Self>> {
        let tensors = (PreparedTensor::restore(py, cache)?, PreparedTensor::restore(py, update)?);
        Self::of_tensors(py, operator, tensors).map(Arc::new)
    }

    /// Checks a call's positions.
    pub(crate) fn plan<'a>(&'a self, py: Python<'_>, indices: &'a ScatterIndices) -> PyResult<WritePlan<'a>> {
        indices.plan(py, &self.prepared)
    }

    /// Returns `true` if the values of a cache and its update are those in their memory. This may run Python code.
    pub(crate) fn are_plain(&self, cache: &Bound<'_, PyAny>, update: &Bound<'_, PyAny>) -> bool {
        self.cache.is_plain(cache) && self.update.is_plain(update)
    }

    /// Returns the memory of a cache and its update if quick comparisons show that the write was prepared for them.
    /// This runs no Python code.
    pub(crate) fn memories(
        &self,
        cache: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
    ) -> Option<[RawBuffer; 2]> {
        let geometry = self.prepared.geometry();
        Some([
            self.cache.memory(cache, Access::Write, geometry.cache_bytes())?,
            self.update.memory(update, Access::Read, geometry.update_bytes())?,
        ])
    }

    pub(crate) fn in_place(
        &self,
        py: Python<'_>,
        plan: &WritePlan<'_>,
        lists: &[&Indices],
        cache: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        // The memory is looked at after all Python code has run.
        if self.are_plain(cache, update)
            && let Some([memory, update]) = self.memories(cache, update)
        {
            write::check_disjoint(lists, memory, "cache")?;
            let skipped = write::in_place_raw(py, plan, memory, update)?;
            if !cache.is_instance_of::<PyUntypedArray>() {
                torch::note_written(cache)?;
            }
            return Ok(skipped);
        }
        let (cache, update) = self.arrays(0, cache, update)?;
        write::in_place(py, plan, &cache, &update, lists)
    }

    /// Imports a cache and its update, and checks that the write was prepared for them.
    pub(crate) fn arrays<'py>(
        &self,
        pair: usize,
        cache: &Bound<'py, PyAny>,
        update: &Bound<'py, PyAny>,
    ) -> PyResult<(Array<'py>, Array<'py>)> {
        let cache = Array::written(cache, "cache")?;
        self.cache.form.check_prepared(&cache, pair)?;
        let update = Array::read(update, "update")?;
        self.update.form.check_prepared(&update, pair)?;
        Ok((cache, update))
    }

    pub(crate) fn write_many(
        &self,
        py: Python<'_>,
        plan: &WritePlan<'_>,
        indices: &ScatterIndices,
        pairs: &[Pair<'_>],
    ) -> PyResult<usize> {
        let pairs = pairs.iter().enumerate();
        let pairs = pairs
            .map(|(pair, (cache, update))| self.arrays(pair, cache, update))
            .collect::<PyResult<Vec<_>>>()?;
        write::write_many(py, plan, &pairs, &indices.all())
    }
}
