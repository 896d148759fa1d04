//! Ascend ATB `KVCacheOperation`.

use kvscatter::OutOfRange;
use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::indices::Indices;
use crate::{error, options, write};

/// Ascend ATB `KVCacheOperation`: writes `newKv` into one layer of `past`, in place.
///
/// Token `j` of batch `i` goes to row `tokenOffset[i] - seqLen[i] + j`: **`tokenOffset` is the length after the
/// write**, not its start. The document asks for `tokenOffset < maxSeqLen`; by its own formula
/// `tokenOffset == maxSeqLen` fills the last slot, and it is taken here as by the real kernel.
///
/// Args:
///     past: `[layer, batch, maxSeqLen, hiddenSize]`. It comes first, as the cache of every operator here; the document
///         lists `newKv` first.
///     newKv: `[nTokens, hiddenSize]`, the tokens of one batch after those of another; or
///         `[batch, seq_len, head_num, head_size]`, with `head_num * head_size == hiddenSize` and each `seqLen` equal
///         to `seq_len`. float16, bfloat16 or int8.
///     layerId: The layer: an integer, or exactly one in an array.
///     tokenOffset: The length after the write, one per batch: `seqLen[i]` to `maxSeqLen`.
///     seqLen: The tokens of each batch, at least 1 each.
///     lengths: Tokens of each batch that are real: padding after them is not written. An extension of ours.
///     out_of_range: `"error"`, or `"skip"` to leave a batch whose `tokenOffset` does not fit as it is. An
///         extension of ours.
///
/// Returns:
///     The number of samples that were skipped.
///
/// Raises:
///     ElementTypeError: Another type, or two different ones.
///     ShapeError: Ranks or sizes that do not go together.
///     PositionError: A layer, an offset or a length that does not fit, or lengths that do not add up to nTokens.
///     ArrayError: A `past` that is read-only, or shares memory with another argument.
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
    let refused = |error| error::core_as_named(py, error);
    let operator = KvCacheOperation::new().out_of_range(out_of_range);
    let past = Array::written(past, "past")?;
    let new_kv = Array::read(newKv, "newKv")?;
    let layer = layer(layerId)?;
    let offsets = Indices::of(Some(tokenOffset), "tokenOffset")?;
    let tokens = Indices::of(Some(seqLen), "seqLen")?;
    let lengths = Indices::of(lengths, "lengths")?;
    new_kv.check_same_element(&past)?;

    let element = past.element().ty;
    let prepared = operator.prepare(element, past.form.layout(), new_kv.form.layout()).map_err(refused)?;
    let (layer_id, token_offset, seq_len) = (layer.i32s()?, offsets.i32s()?, tokens.i32s()?);
    let call = KvCacheOperationCall { layer_id: &layer_id, token_offset: &token_offset, seq_len: &seq_len };
    let plan = prepared.plan_with_lengths(call, lengths.lengths()).map_err(refused)?;
    write::in_place(py, &plan, &past, &new_kv, &[&layer, &offsets, &tokens, &lengths])
}

/// A tensor of one element in the document; in Python also the integer itself.
fn layer(object: &Bound<'_, PyAny>) -> PyResult<Indices> {
    let py = object.py();
    let integer = object.extract::<i64>();
    let is_integer =
        integer.is_ok() || integer.is_err_and(|error| error.is_instance_of::<PyOverflowError>(py));
    if is_integer { Indices::one(object, "layerId") } else { Indices::of(Some(object), "layerId") }
}
