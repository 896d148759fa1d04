//! TensorRT `KVCacheUpdate`.

use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
use kvscatter::{Call, OutOfRange};
use pyo3::prelude::*;

use crate::array::Array;
use crate::error::ArgumentNames;
use crate::indices::Indices;
use crate::{options, write};

/// Writes `update` into `cache` in place, by TensorRT `KVCacheUpdate`.
///
/// Args:
///     cache: `[b, d, s_max, h]` of float32, float16 or bfloat16.
///     update: `[b, d, s, h]`, with no more samples than the cache. The remaining samples of the cache stay
///         unchanged. With `updateLengths` the update is packed, as in TensorRT 11: `[totalTokens, d, h]`.
///     writeIndices: The first slot written, one per sample of the update.
///     updateLengths: The beginning of each sample's rows in a packed update, cumulative from 0. It has one
///         value more than there are samples.
///     lengths: The number of rows of each sample that are not padding. Padding after them is not written.
///         kvscatter extension; not part of the specification.
///     out_of_range: `"error"`, or `"skip"` to leave a sample unchanged whose index does not fit. kvscatter
///         extension; not part of the specification. TensorRT's header ignores such updates, and its
///         documentation does not allow them.
///
/// Returns:
///     The number of samples that were skipped.
///
/// Raises:
///     ElementTypeError: The operator does not accept the type, or the two types differ.
///     ShapeError: Ranks, heads or head sizes differ, or the update is longer or has more samples than the
///         cache.
///     PositionError: An index is negative or does not fit, the lengths do not add up, or there are too few
///         values.
///     ArrayError: The cache is read-only, or shares memory with another argument.
///
/// >>> import numpy as np
/// >>> cache = np.zeros((2, 1, 4, 1), dtype=np.float32)
/// >>> update = np.array([1, 2], dtype=np.float32).reshape(2, 1, 1, 1)
/// >>> kvscatter.kv_cache_update_(cache, update, writeIndices=[3, 0])
/// 0
/// >>> cache.reshape(2, 4)
/// array([[0., 0., 0., 1.],
///        [2., 0., 0., 0.]], dtype=float32)
#[pyfunction]
#[pyo3(signature = (cache, update, writeIndices, updateLengths = None, *, lengths = None, out_of_range = OutOfRange::Error))]
#[pyo3(
    text_signature = "(cache, update, writeIndices, updateLengths=None, *, lengths=None, out_of_range='error')"
)]
#[expect(non_snake_case, reason = "TensorRT's spelling")]
pub(crate) fn kv_cache_update_(
    cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    writeIndices: &Bound<'_, PyAny>,
    updateLengths: Option<&Bound<'_, PyAny>>,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
) -> PyResult<usize> {
    let py = cache.py();
    let refused = |error| ArgumentNames::Specification.raise(py, error);
    let operator = KvCacheUpdate::new().out_of_range(out_of_range);
    let cache = Array::written(cache, "cache")?;
    let update = Array::read(update, "update")?;
    let starts = Indices::read(Some(writeIndices), "writeIndices")?;
    let ends = Indices::read(updateLengths, "updateLengths")?;
    let lengths = Indices::read(lengths, "lengths")?;
    update.check_same_element(&cache)?;

    let element = cache.element().ty;
    let (old, new) = (cache.form.layout(), update.form.layout());
    let prepared = match updateLengths {
        Some(_) => operator.prepare_packed(element, old, new),
        None => operator.prepare(element, old, new),
    };
    let prepared = prepared.map_err(refused)?;
    let cumulative = ends.i32s()?;
    let call = match updateLengths {
        Some(_) => Call::from(PackedCall::new(starts.starts(), &cumulative)),
        None => starts.starts().into(),
    };
    let plan = prepared.plan_with_lengths(call, lengths.lengths()).map_err(refused)?;
    write::in_place(py, &plan, &cache, &update, &[&starts, &ends, &lengths])
}
