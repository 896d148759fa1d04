"""Adversarial calls, with their expected results from the oracle."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from kvscatter import _integers, _native
from kvscatter._arrays import Array
from kvscatter._dtypes import FOUR_BITS, ONNX_NAMES, dtype_named, unpacked
from kvscatter.errors import OptionError
from kvscatter.reference import Refused, gathered, refused

Operator = Literal["tensor_scatter", "kv_cache_update", "kv_cache_operation"]
Extension = Literal["lengths", "out_of_range", "negative_index"]

OPERATORS: Final[tuple[Operator, ...]] = ("tensor_scatter", "kv_cache_update", "kv_cache_operation")
EXTENSIONS: Final[tuple[Extension, ...]] = ("lengths", "out_of_range", "negative_index")

_NAMES: Final = {
    "tensor_scatter": {"cache": "past_cache", "update": "update", "starts": "write_indices"},
    "kv_cache_update": {"cache": "cache", "update": "update", "starts": "writeIndices"},
    "kv_cache_operation": {"cache": "past", "update": "newKv", "starts": "tokenOffset"},
}


@dataclass(frozen=True, eq=False)
class Case:
    """One call and its expected result."""

    name: str
    """Describes the difficulty of the case. Names are unique for a seed."""
    operator: Operator
    arguments: dict[str, Any]
    """All arguments by their specification's names, the cache first. Copy an array before you write into it,
    because the case owns it."""
    expected: Array | None
    """The cache after the call, or None if the kernel must raise an error."""
    skipped: int
    """The number of samples that ``out_of_range="skip"`` leaves unchanged."""
    refusal: Refused | None
    """The rule that the call breaks, or None if the call is valid."""
    origins: npt.NDArray[np.int64] | None
    """The index in the update of each element of ``expected``, or -1 for an element of the past cache."""

    @property
    def cache(self) -> Array:
        """The cache before the call."""
        array: Array = self.arguments[_NAMES[self.operator]["cache"]]
        return array

    @property
    def update(self) -> Array:
        """The new rows."""
        array: Array = self.arguments[_NAMES[self.operator]["update"]]
        return array

    @property
    def starts(self) -> tuple[str, Array | None]:
        """The operator's name for the positions, and the positions."""
        name = _NAMES[self.operator]["starts"]
        return name, self.arguments[name]

    def __repr__(self) -> str:
        return f"Case({self.name})"


def cases(
    seed: int,
    n: int,
    *,
    operators: Collection[Operator] = OPERATORS,
    dtypes: Sequence[npt.DTypeLike] | None = None,
    extensions: Collection[Extension] = (),
) -> Iterator[Case]:
    """Yields ``n`` cases, which are the same for the same arguments. Each idea meets each element type in
    turn.

    ``dtypes`` limits the cache's element types. By default all 24 types take part, except those that are not
    available without a newer ml_dtypes, see ``left_out``. ``extensions`` names the kvscatter extensions, not
    part of the specification, that the cases may use: ``lengths``, ``out_of_range`` and ``negative_index``.

    Raises:

    - ``OptionError`` for unknown names, for a ``seed`` or an ``n`` out of range, and for types that no case
      of the operators has.
    - ``ElementTypeError`` if ``seed`` or ``n`` is not an integer.
    - ``ImportError`` for a dtype that needs ml_dtypes if that is missing.
    """
    _check_names("operators", operators, OPERATORS)
    _check_names("extensions", extensions, EXTENSIONS)
    if isinstance(dtypes, str):
        raise OptionError(f"dtypes = {dtypes!r}: must be a list of types", "unknown_name", "dtypes")
    n = _integers.within("n", n, 0, sys.maxsize)
    seed = _integers.within("seed", seed, 0, 2**64 - 1)
    available = [name for name in ONNX_NAMES if dtype_named(name) is not None]
    wanted = available if dtypes is None else [_element_name(dtype) for dtype in dtypes]
    drawn = _native.OracleCases(
        seed,
        list(operators),
        [ONNX_NAMES[name] for name in wanted],
        [ONNX_NAMES[name] for name in available],
        list(extensions),
    )
    return _exactly(n, drawn, f"no case of {', '.join(operators)} is about {', '.join(wanted)}")


def left_out() -> tuple[str, ...]:
    """Returns the NumPy names of the element types that are missing because ml_dtypes is missing or too
    old."""
    return tuple(name for name in ONNX_NAMES if dtype_named(name) is None)


def _exactly(n: int, drawn: Iterator[dict[str, Any]], otherwise: str) -> Iterator[Case]:
    made = 0
    for drawn_case in islice(drawn, n):
        made += 1
        yield _case(drawn_case)
    if made < n:
        raise OptionError(otherwise, "no_such_case", "dtypes")


def _check_names(argument: str, given: Collection[str], known: Sequence[str]) -> None:
    for name in given:
        if isinstance(given, str) or name not in known:
            message = f"{argument} = {given!r}: must be some of {', '.join(known)}"
            raise OptionError(message, "unknown_name", argument)


def _element_name(dtype: npt.DTypeLike) -> str:
    if isinstance(dtype, str) and dtype in ONNX_NAMES:
        name, known = dtype, dtype_named(dtype)
        if known is None:
            raise ImportError(
                f"{name} needs ml_dtypes, a newer one if there is one: pip install kvscatter[testing]"
            )
        return name
    name = np.dtype(dtype).name
    if name not in ONNX_NAMES:
        raise OptionError(f"dtypes: {name} is not a type of TensorScatter", "unknown_name", "dtypes")
    return name


def _case(drawn: dict[str, Any]) -> Case:
    call = drawn["call"]
    operator: Operator = call["operator"]
    names = [next(key for key, value in ONNX_NAMES.items() if value == onnx) for onnx in drawn["elements"]]
    stored = zip(names, drawn["shapes"], (drawn["cache"], drawn["update"]), strict=True)
    cache, update = (_array(*each) for each in stored)
    origins, skipped, refusal = drawn["answer"]
    arguments: dict[str, Any] = {_NAMES[operator]["cache"]: cache, _NAMES[operator]["update"]: update}
    arguments |= {name: _indices(values, narrow=narrow) for name, values, narrow in call["indices"]}
    if call["axis_and_mode"] is not None:
        arguments["axis"], arguments["mode"] = call["axis_and_mode"]
    if call["lengths"] is not None:
        arguments["lengths"] = _indices(call["lengths"])
    return Case(
        name=drawn["name"],
        operator=operator,
        arguments=arguments | dict(call["policies"]),
        expected=None if origins is None else gathered(cache, update, origins),
        skipped=skipped,
        refusal=None if refusal is None else refused(refusal, _NAMES[operator]),
        origins=None if origins is None else origins.reshape(cache.shape),
    )


def _array(name: str, shape: list[int], stored: bytes | list[str]) -> Array:
    dtype = dtype_named(name)
    assert dtype is not None
    if not isinstance(stored, bytes):
        return np.array(stored, dtype=object).reshape(shape)
    values = np.frombuffer(stored, np.uint8)
    if name in FOUR_BITS:
        values = unpacked(values, int(np.prod(shape)))
    return values.copy().view(dtype).reshape(shape)


def _indices(values: list[int] | None, *, narrow: bool = False) -> npt.NDArray[np.integer[Any]] | None:
    """Returns int64, or int32 if ``narrow`` is set and the values fit."""
    if values is None:
        return None
    wide = np.array(values, np.int64)
    fits = narrow and np.array_equal(wide, wide.astype(np.int32))
    return wide.astype(np.int32) if fits else wide
