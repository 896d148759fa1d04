//! Ascend ATB `KVCacheOperation`.

use kvscatter::spec::ascend::{KvCacheOperation, KvCacheParam};
use kvscatter::{Argument, OutOfRange};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::error::{self, Class, Field, raise};
use crate::indices::Indices;
use crate::{options, write};

/// Ascend ATB `KVCacheOperation`: writes `newKv` into one layer of `past`, in place.
///
/// Token `j` of batch `i` goes to row `tokenOffset[i] - seqLen[i] + j`: **`tokenOffset` is the length after the
/// write**, not its start. The document asks for `tokenOffset < maxSeqLen`; by its own formula
/// `tokenOffset == maxSeqLen` fills the last slot, and it is taken here as by the real kernel.
///
/// Args:
///     newKv: `[nTokens, hiddenSize]`, the tokens of one batch behind those of another; or
///         `[batch, seq_len, head_num, head_size]`, with `head_num * head_size == hiddenSize` and each `seqLen` equal
///         to `seq_len`. float16, bfloat16 or int8.
///     layerId: The layer: an integer, or exactly one in an array.
///     past: `[layer, batch, maxSeqLen, hiddenSize]`.
///     tokenOffset: The length after the write, one per batch: `seqLen[i]` to `maxSeqLen`.
///     seqLen: The tokens of each batch, at least 1 each.
///     param: `KVCacheParam`: eight reserved bytes, all zero.
///     lengths: Tokens of each batch that are real: padding behind them is not written. An extension of ours.
///     out_of_range: `"error"`, or `"skip"` to leave a batch whose `tokenOffset` does not fit as it is. An
///         extension of ours.
///
/// Returns:
///     The number of samples that were skipped.
///
/// Raises:
///     ElementTypeError: Another type, or two different ones.
///     ShapeError: Ranks or sizes that do not go together.
///     OptionError: Reserved bytes that are not zero.
///     PositionError: A layer, an offset or a length that does not fit, or lengths that do not add up to nTokens.
///     ArrayError: A `past` that is read-only, or shares memory with another argument.
///
/// >>> import numpy as np
/// >>> past = np.zeros((2, 2, 4, 1), dtype=np.int8)
/// >>> new_kv = np.array([[1], [2], [3]], dtype=np.int8)
/// >>> kvscatter.kv_cache_operation_(new_kv, 1, past, tokenOffset=[4, 1], seqLen=[2, 1])
/// 0
/// >>> past[1].reshape(2, 4)
/// array([[0, 0, 1, 2],
///        [3, 0, 0, 0]], dtype=int8)
#[pyfunction]
#[pyo3(signature = (
    newKv, layerId, past, tokenOffset, seqLen, *,
    param = ZEROS, lengths = None, out_of_range = OutOfRange::Error
))]
// `inspect` reads literals alone, and PyO3 writes `...` for others.
#[pyo3(text_signature = "(newKv, layerId, past, tokenOffset, seqLen, *, \
    param=b'\\0\\0\\0\\0\\0\\0\\0\\0', lengths=None, out_of_range='error')")]
#[expect(non_snake_case, reason = "Ascend's spelling")]
#[expect(clippy::too_many_arguments, reason = "Ascend's")]
pub(crate) fn kv_cache_operation_(
    newKv: &Bound<'_, PyAny>,
    layerId: &Bound<'_, PyAny>,
    past: &Bound<'_, PyAny>,
    tokenOffset: &Bound<'_, PyAny>,
    seqLen: &Bound<'_, PyAny>,
    param: &[u8],
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
) -> PyResult<usize> {
    let py = past.py();
    let refused = |error| error::core_about(py, error, Argument::Past, Argument::NewKv);
    let operator = KvCacheOperation::new().param(reserved(py, param)?).out_of_range(out_of_range);
    let past = Array::written(past, "past")?;
    let new_kv = Array::read(newKv, "newKv")?;
    let layer = layer(layerId)?;
    let offsets = Indices::of(Some(tokenOffset), "tokenOffset")?;
    let tokens = Indices::of(Some(seqLen), "seqLen")?;
    let lengths = Indices::of(lengths, "lengths")?;
    new_kv.check_same_element(&past)?;

    let element = past.element().ty;
    let prepared = operator.prepare(element, new_kv.form.layout(), past.form.layout()).map_err(refused)?;
    let narrow = (layer.i32s()?, offsets.i32s()?, tokens.i32s()?);
    let plan = prepared.plan_lengths(&narrow.0, &narrow.1, &narrow.2, lengths.lengths()).map_err(refused)?;
    write::in_place(py, &plan, &past, &new_kv, &[&layer, &offsets, &tokens, &lengths])
}

const ZEROS: &[u8] = &[0; 8];

fn reserved(py: Python<'_>, param: &[u8]) -> PyResult<KvCacheParam> {
    let rsv = param.try_into().map_err(|_| {
        let message = format!("param has {} bytes, must have 8", param.len());
        let fields = [("got", Field::Size(param.len())), ("want", Field::Size(8))];
        raise(py, Class::Option, "param_size", Some("param"), message, &fields)
    })?;
    Ok(KvCacheParam { rsv })
}

/// A tensor of one element in the document; in Python also the integer itself.
fn layer(object: &Bound<'_, PyAny>) -> PyResult<Indices> {
    let py = object.py();
    let integer = object.extract::<i64>();
    let is_integer =
        integer.is_ok() || integer.is_err_and(|error| error.is_instance_of::<PyOverflowError>(py));
    if is_integer { Indices::one(object, "layerId") } else { Indices::of(Some(object), "layerId") }
}
