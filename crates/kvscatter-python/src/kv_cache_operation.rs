//! Ascend ATB `KVCacheOperation`.

use kvscatter::OutOfRange;
use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::error::ArgumentNames;
use crate::indices::Indices;
use crate::{options, write};

/// Writes `newKv` into one layer of `past` in place, by Ascend ATB `KVCacheOperation`.
///
/// Token `j` of batch `i` goes to row `tokenOffset[i] - seqLen[i] + j`. **`tokenOffset` is the length after
/// the write**, not its start. The specification requires `tokenOffset < maxSeqLen`. By its own formula,
/// `tokenOffset == maxSeqLen` fills the last slot. This function accepts that value, as the real kernel
/// does.
///
/// Args:
///     past: `[layer, batch, maxSeqLen, hiddenSize]`. It comes first, like the cache of every operator here,
///         although the specification lists `newKv` first.
///     newKv: `[nTokens, hiddenSize]` with the tokens of all batches in sequence, or `[batch, seq_len,
///         head_num, head_size]` with `head_num * head_size == hiddenSize` and each `seqLen` equal to
///         `seq_len`. The type is float16, bfloat16 or int8.
///     layerId: The layer, as an integer or as an array with exactly one.
///     tokenOffset: The length after the write, one per batch, from `seqLen[i]` to `maxSeqLen`.
///     seqLen: The number of tokens of each batch, at least 1.
///     lengths: The number of tokens of each batch that are not padding. Padding after them is not written.
///         kvscatter extension; not part of the specification.
///     out_of_range: `"error"`, or `"skip"` to leave a batch unchanged whose `tokenOffset` does not fit.
///         kvscatter extension; not part of the specification.
///
/// Returns:
///     The number of samples that were skipped.
///
/// Raises:
///     ElementTypeError: The operator does not accept the type, or the two types differ.
///     ShapeError: Ranks or sizes do not match.
///     PositionError: A layer, an offset or a length does not fit, or the lengths do not add up to nTokens.
///     ArrayError: `past` is read-only, or shares memory with another argument.
///
/// >>> import numpy as np
/// >>> past = np.zeros((2, 2, 4, 1), dtype=np.int8)
/// >>> new_kv = np.array([[1], [2], [3]], dtype=np.int8)
/// >>> kvscatter.kv_cache_operation_(past, new_kv, 1, tokenOffset=[4, 1], seqLen=[2, 1])
/// 0
/// >>> past[1].reshape(2, 4)
/// array([[0, 0, 1, 2],
///        [3, 0, 0, 0]], dtype=int8)
#[pyfunction]
#[pyo3(signature = (
    past, newKv, layerId, tokenOffset, seqLen, *,
    lengths = None, out_of_range = OutOfRange::Error
))]
#[pyo3(text_signature = "(past, newKv, layerId, tokenOffset, seqLen, *, \
    lengths=None, out_of_range='error')")]
#[expect(non_snake_case, reason = "Ascend's spelling")]
pub(crate) fn kv_cache_operation_(
    past: &Bound<'_, PyAny>,
    newKv: &Bound<'_, PyAny>,
    layerId: &Bound<'_, PyAny>,
    tokenOffset: &Bound<'_, PyAny>,
    seqLen: &Bound<'_, PyAny>,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
) -> PyResult<usize> {
    let py = past.py();
    let refused = |error| ArgumentNames::Specification.raise(py, error);
    let operator = KvCacheOperation::new().out_of_range(out_of_range);
    let past = Array::written(past, "past")?;
    let new_kv = Array::read(newKv, "newKv")?;
    let layer = layer(layerId)?;
    let offsets = Indices::read(Some(tokenOffset), "tokenOffset")?;
    let tokens = Indices::read(Some(seqLen), "seqLen")?;
    let lengths = Indices::read(lengths, "lengths")?;
    new_kv.check_same_element(&past)?;

    let element = past.element().ty;
    let prepared = operator.prepare(element, past.form.layout(), new_kv.form.layout()).map_err(refused)?;
    let (layer_id, token_offset, seq_len) = (layer.i32s()?, offsets.i32s()?, tokens.i32s()?);
    let call = KvCacheOperationCall { layer_id: &layer_id, token_offset: &token_offset, seq_len: &seq_len };
    let plan = prepared.plan_with_lengths(call, lengths.lengths()).map_err(refused)?;
    write::in_place(py, &plan, &past, &new_kv, &[&layer, &offsets, &tokens, &lengths])
}

/// Reads the layer. The specification requires a tensor of one element, and Python callers can also pass the
/// integer itself.
fn layer(object: &Bound<'_, PyAny>) -> PyResult<Indices> {
    let py = object.py();
    let integer = object.extract::<i64>();
    let is_integer =
        integer.is_ok() || integer.is_err_and(|error| error.is_instance_of::<PyOverflowError>(py));
    if is_integer { Indices::one(object, "layerId") } else { Indices::read(Some(object), "layerId") }
}
