"""The pseudocode of the three specifications, slow and simple, for comparison with kernels.

The functions of this module are functional and do not change their arguments. They share no code with the
rest of the package. An oracle visits the elements one at a time and returns the origin of each element of
the result. NumPy then moves the elements bit for bit. Where a specification is wrong or silent, these
functions follow the same published decisions as the rest of the package.

>>> import numpy as np
>>> from kvscatter import reference
>>> past, new = np.zeros((1, 4, 1), np.float16), np.ones((1, 2, 1), np.float16)
>>> reference.tensor_scatter(past, new, [3], mode="circular").ravel().tolist()
[1.0, 0.0, 0.0, 1.0]
>>> try:
...     reference.tensor_scatter(past, new, [3])
... except reference.Refused as refused:
...     print(refused.rule, refused.start, refused.capacity)
out_of_range 3 4
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Literal, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt

from kvscatter import _native
from kvscatter._arrays import Array, as_array
from kvscatter._dtypes import ONNX_NAMES
from kvscatter._typing import Indices, Integer, NegativeIndex, OutOfRange
from kvscatter.errors import Error, OptionError

__all__ = ["Answer", "Refused", "answer", "kv_cache_operation", "kv_cache_update", "tensor_scatter"]


def __dir__() -> list[str]:
    return __all__


class Refused(Error, ValueError):
    """A call that breaks a rule of its specification.

    ``rule`` is the oracle's name of the rule and equals ``kind``. The numbers are attributes. If a call
    breaks several rules, the first one in this order is reported: attributes and shapes, numbers of indices,
    the layer, cumulative lengths, then the rows, the length and the start of each sample in turn, then the
    total.
    """

    sample: int | None = None
    """The sample that breaks the rule, counted from 0."""
    start: int | None = None
    """The first slot of the sample."""
    length: int | None = None
    """The length of the sample."""
    given: int | None = None
    """The number of indices that were given."""
    first: int | None = None
    """The first cumulative length."""
    total: int | None = None
    """The sum of the lengths."""
    layer_id: int | None = None
    """The requested layer."""
    seq_len: int | None = None
    """The number of tokens of the sample."""
    name: str | None = None
    """The requested mode."""

    @property
    def rule(self) -> str:
        """The name of the rule that was broken."""
        return self.kind


class Answer(NamedTuple):
    """The result of a call."""

    present: Array
    """The cache after the write."""
    skipped: int
    """The number of samples that ``out_of_range="skip"`` left unchanged."""


P = ParamSpec("P")

_ANSWERS: dict[Callable[..., Array], Callable[..., Answer]] = {}
"""The functions of this module, each with the function that computes its whole answer."""


def _present(function: Callable[P, Answer]) -> Callable[P, Array]:
    """Returns the function that returns only the cache, as the specifications do."""

    @wraps(function)
    def present(*args: P.args, **kwargs: P.kwargs) -> Array:
        return function(*args, **kwargs).present

    # For `help`.
    vars(present)["__signature__"] = signature(function).replace(return_annotation="Array")
    _ANSWERS[present] = function
    return present


def answer(function: Callable[P, Array], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
    """Returns the whole answer of a function of this module, including the number of skipped samples.

    >>> past, new = np.zeros((2, 4, 1), np.float16), np.ones((2, 2, 1), np.float16)
    >>> answer(tensor_scatter, past, new, [1, 3], out_of_range="skip").skipped
    1
    """
    if function not in _ANSWERS:
        raise TypeError(f"{function!r} is not a function of kvscatter.reference")
    return _ANSWERS[function](*args, **kwargs)


@_present
def tensor_scatter(
    past_cache: Array,
    update: Array,
    write_indices: Indices | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
) -> Answer:
    """ONNX ``TensorScatter-24``. Returns ``present_cache``, with the shape and dtype of ``past_cache``.

    ``past_cache`` is ``(batch, ..., max_sequence_length, ...)`` with the sequence at ``axis``. ``update`` has
    the same dimensions, except that its sequence may be shorter. ``write_indices`` is ``(batch,)`` and
    defaults to zeros. ``lengths``, also ``(batch,)``, and the policies are kvscatter extensions; not part of
    the specification. `answer` returns the number of samples that ``out_of_range="skip"`` leaves unchanged.

    Raises ``Refused``, ``ShapeError`` of kind ``too_large`` for arrays of more than 2^27 elements, and
    ``ArrayError`` for masked ones.
    """
    past, new = as_array("past_cache", past_cache), as_array("update", update)
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise Refused(f"axis: axis = {axis!r} must be an integer", "axis", "axis", rank=past.ndim)
    if not -(2**63) <= axis < 2**63:
        message = f"axis: axis = {_digits(axis)}, rank = {past.ndim}"
        raise Refused(message, "axis", "axis", axis=axis, rank=past.ndim)
    oracle_answer = _native.oracle_tensor_scatter(
        _tensors(past, new),
        _optional("write_indices", write_indices),
        axis,
        mode,
        _optional("lengths", lengths),
        (
            _policy("out_of_range", out_of_range, "error", "skip"),
            _policy("negative_index", negative_index, "modulo", "reject"),
        ),
    )
    names = {"cache": "past_cache", "update": "update", "starts": "write_indices"}
    return _answer(past, new, oracle_answer, names)


@_present
def kv_cache_update(
    cache: Array,
    update: Array,
    writeIndices: Indices,
    updateLengths: Indices | None = None,
    *,
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
) -> Answer:
    """TensorRT ``KVCacheUpdate``. Returns the cache ``[b, d, s_max, h]`` after the write.

    ``update`` is ``[b, d, s, h]``, with no more samples than the cache. With the cumulative ``updateLengths``
    of ``batch + 1`` values, it is packed: ``[tokens, d, h]``. The rest is as in ``tensor_scatter``.

    Raises ``Refused``, ``ShapeError`` of kind ``too_large`` for arrays of more than 2^27 elements, and ``ArrayError``
    for masked ones.
    """
    past, new = as_array("cache", cache), as_array("update", update)
    oracle_answer = _native.oracle_kv_cache_update(
        _tensors(past, new),
        _indices("writeIndices", writeIndices),
        None if updateLengths is None else _indices("updateLengths", updateLengths, 32),
        _optional("lengths", lengths),
        _policy("out_of_range", out_of_range, "error", "skip"),
    )
    names = {"cache": "cache", "update": "update", "starts": "writeIndices"}
    return _answer(past, new, oracle_answer, names)


@_present
def kv_cache_operation(
    past: Array,
    newKv: Array,
    layerId: Indices | Integer,
    tokenOffset: Indices,
    seqLen: Indices,
    *,
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
) -> Answer:
    """Ascend ATB ``KVCacheOperation``. Returns the cache ``[layer, batch, maxSeqLen, hiddenSize]`` after the
    write.

    ``newKv`` is ``[ntokens, hiddenSize]`` or ``[batch, seq_len, head_num, head_size]``. ``tokenOffset``
    counts the tokens after the write, and ``seqLen`` counts the tokens of this call. The rest is as in
    ``tensor_scatter``.

    Raises ``Refused``, ``ShapeError`` of kind ``too_large`` for arrays of more than 2^27 elements, and ``ArrayError``
    for masked ones.
    """
    cache, new = as_array("past", past), as_array("newKv", newKv)
    layers = [layerId] if isinstance(layerId, (int, np.integer)) else layerId
    oracle_answer = _native.oracle_kv_cache_operation(
        _tensors(cache, new),
        _indices("layerId", layers, 32),
        _indices("tokenOffset", tokenOffset, 32),
        _indices("seqLen", seqLen, 32),
        _optional("lengths", lengths),
        _policy("out_of_range", out_of_range, "error", "skip"),
    )
    names = {"cache": "past", "update": "newKv", "starts": "tokenOffset"}
    return _answer(cache, new, oracle_answer, names)


def refused(refusal: tuple[str, str, dict[str, Any]], names: dict[str, str]) -> Refused:
    """Converts a rule that a call breaks to an exception that uses the operator's own argument names."""
    rule, message, fields = refusal
    argument = fields.pop("argument", None) or names.get(_ABOUT.get(rule, ""), _ABOUT.get(rule))
    return Refused(message, rule, argument, **fields)


def gathered(past: Array, update: Array, origins: npt.NDArray[np.int64]) -> Array:
    """Returns a copy of ``past`` in which each origin that is not negative names an element of ``update``."""
    present = np.array(past, order="C")
    written = origins >= 0
    to, source = present.reshape(-1), np.ascontiguousarray(update).reshape(-1)
    if not present.dtype.hasobject:
        # Copy as bytes, so that NaN payloads do not change.
        to, source = _as_bytes(to), _as_bytes(source)
    to[written] = source[origins[written]]
    return present


def _as_bytes(flat: Array) -> Array:
    return flat.view(np.uint8).reshape(flat.size, flat.itemsize)


_ABOUT = {
    "types_differ": "update",
    "unsupported_type": "cache",
    "mode": "mode",
    "cache_rank": "cache",
    "update_rank": "update",
    "axis": "axis",
    "dimension": "update",
    "update_too_long": "update",
    "length": "lengths",
    "negative_start": "starts",
    "out_of_range": "starts",
    "update_lengths_first": "updateLengths",
    "update_lengths_decrease": "updateLengths",
    "update_lengths_too_long": "updateLengths",
    "update_lengths_total": "updateLengths",
    "layer_id": "layerId",
    "seq_len": "seqLen",
    "seq_len_total": "seqLen",
}
"""The argument that each rule is about."""


def _answer(past: Array, update: Array, oracle_answer: tuple[Any, int, Any], names: dict[str, str]) -> Answer:
    origins, skipped, refusal = oracle_answer
    if refusal is not None:
        raise refused(refusal, names)
    return Answer(gathered(past, update, origins), skipped)


def _tensors(cache: Array, update: Array) -> tuple[tuple[str, str], tuple[int, ...], tuple[int, ...]]:
    return (_element(cache), _element(update)), cache.shape, update.shape


def _element(array: Array) -> str:
    name = ONNX_NAMES.get(array.dtype.name)
    if name is None or not array.dtype.isnative:
        dtype = array.dtype.str if array.dtype.kind != "V" else str(array.dtype)
        raise Refused(f"unsupported type: element = {dtype!r}", "unsupported_type", None, element=dtype)
    return name


def _optional(argument: str, values: Indices | None) -> list[int] | None:
    return None if values is None else _indices(argument, values)


def _indices(argument: str, values: Indices, bits: Literal[32, 64] = 64) -> list[int]:
    array = as_array(argument, values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.int64)  # NumPy gives an empty list a float dtype
    is_large = array.dtype.hasobject and all(type(value) is int for value in array.flat)  # wider than 64 bits
    if array.ndim != 1 or (array.dtype.kind not in "iu" and not is_large):
        given = f"{array.dtype} of shape {array.shape}"
        raise Refused(f"index type: {argument} = {given} is not a list of integers", "index_type", argument)
    limits = np.iinfo(np.int32 if bits == 32 else np.int64)
    numbers: list[int] = array.tolist()
    for index, value in enumerate(numbers):
        if not limits.min <= value <= limits.max:
            message = f"index range: {argument}[{index}] = {_digits(value)} does not fit int{bits}"
            raise Refused(message, "index_range", argument, index=index, value=value)
    return numbers


def _digits(value: int) -> str:
    """Returns the number as text, or its size if Python does not print that many digits."""
    return str(value) if value.bit_length() < 1000 else f"a number of {value.bit_length()} bits"


def _policy(argument: str, given: str, default: str, other: str) -> bool:
    if given not in (default, other):
        message = f"{argument} = {given!r}: only {default!r} and {other!r} exist"
        raise OptionError(message, "unknown_policy", argument, value=given)
    return given == other
