"""Converts between the four conventions for the position of a write.

Confusing them is a common off-by-one error:

=====================  ====================  ==================================================
system                 its number            means
=====================  ====================  ==================================================
ONNX, TensorRT         ``write_indices``     first slot written
ONNX Attention         ``nonpad_kv_seqlen``  length *after* the write
Ascend ATB             ``tokenOffset``       end: length after the write
GroupQueryAttention    ``seqlens_k``         *last index*: length after the write, less 1
=====================  ====================  ==================================================

These are the four numbers of one write. A cache of 8 slots has 5 tokens of one sample, and the write appends
2 more:

>>> from kvscatter import positions
>>> start = 5
>>> positions.nonpad_kv_seqlen(start, rows=2, capacity=8)
7
>>> positions.token_offset(start, rows=2)
7
>>> positions.seqlens_k(start, rows=2)
6
>>> positions.start_from_seqlens_k(6, rows=2)
5

For a batch, pass an array, and the result is an array too. ``rows`` may then differ between samples:

>>> positions.token_offset([5, 0], rows=2)
array([7, 2])
>>> positions.start_from_token_offset([7, 2], rows=[2, 1])
array([5, 1])

``rows`` is the number of rows of the sample that are written, including right padding. For causal Attention
after a ``TensorScatter``, query ``i`` sees key ``j <= i + nonpad_kv_seqlen - q_len``. The length to pass is
therefore ``write_indices + q_len``. Subtract the padding from it to get the *next* write index.

Positions are unwrapped. They keep growing in circular mode, and only :func:`nonpad_kv_seqlen` stops at the
capacity.

Every function takes integers and returns an ``int``. The position, ``rows`` or both can also be an integer
array or a sequence of ``int``, with one value per sample. The function then returns a NumPy array of int64.
Every function raises :class:`kvscatter.PositionError` for a position that no write can have, with the sample
in ``error.index``.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from kvscatter._native import positions as _native
from kvscatter._typing import Indices, Integer, Mode

__all__ = [
    "length_after",
    "nonpad_kv_seqlen",
    "seqlens_k",
    "start_from_length_after",
    "start_from_nonpad_kv_seqlen",
    "start_from_seqlens_k",
    "start_from_token_offset",
    "token_offset",
]


def __dir__() -> list[str]:
    return __all__


@overload
def length_after(start: Integer, rows: Integer) -> int: ...
@overload
def length_after(start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def length_after(start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def length_after(start: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """Converts ``write_indices`` to the length after the write.

    >>> length_after(5, rows=2)
    7

    Raises:
        PositionError: The start is negative, or the sum does not fit 64 bits.
    """
    return _native.length_after(start, rows)


@overload
def start_from_length_after(length: Integer, rows: Integer) -> int: ...
@overload
def start_from_length_after(length: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def start_from_length_after(length: Integer, rows: Indices) -> NDArray[np.int64]: ...
def start_from_length_after(length: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """Converts the length after the write to ``write_indices``.

    >>> start_from_length_after(7, rows=2)
    5

    Raises:
            PositionError: The length is smaller than the number of rows written.
    """
    return _native.start_from_length_after(length, rows)


@overload
def token_offset(start: Integer, rows: Integer) -> int: ...
@overload
def token_offset(start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def token_offset(start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def token_offset(start: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """Converts ``write_indices`` to Ascend's ``tokenOffset``. ``rows`` is Ascend's ``seqLen``.

    >>> token_offset(5, rows=2)
    7

    Raises:
        PositionError: The start is negative, or the sum does not fit 64 bits.
    """
    return _native.token_offset(start, rows)


@overload
def start_from_token_offset(token_offset: Integer, rows: Integer) -> int: ...
@overload
def start_from_token_offset(token_offset: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def start_from_token_offset(token_offset: Integer, rows: Indices) -> NDArray[np.int64]: ...
def start_from_token_offset(
    token_offset: Integer | Indices, rows: Integer | Indices
) -> int | NDArray[np.int64]:
    """Converts Ascend's ``tokenOffset`` to ``write_indices``.

    >>> start_from_token_offset(7, rows=2)
    5

    Raises:
            PositionError: The offset is smaller than the number of rows written.
    """
    return _native.start_from_token_offset(token_offset, rows)


@overload
def seqlens_k(start: Integer, rows: Integer) -> int: ...
@overload
def seqlens_k(start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def seqlens_k(start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def seqlens_k(start: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """Converts ``write_indices`` to GroupQueryAttention's ``seqlens_k``, which is -1 for a sample that is
    still empty.

    >>> seqlens_k(5, rows=2)
    6
    >>> seqlens_k(0, rows=0)
    -1

    Raises:
        PositionError: The start is negative, or the sum does not fit 64 bits.
    """
    return _native.seqlens_k(start, rows)


@overload
def start_from_seqlens_k(last: Integer, rows: Integer) -> int: ...
@overload
def start_from_seqlens_k(last: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def start_from_seqlens_k(last: Integer, rows: Indices) -> NDArray[np.int64]: ...
def start_from_seqlens_k(last: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """Converts GroupQueryAttention's ``seqlens_k`` to ``write_indices``.

    >>> start_from_seqlens_k(6, rows=2)
    5

    Raises:
            PositionError: There are fewer positions up to this index than rows written.
    """
    return _native.start_from_seqlens_k(last, rows)


@overload
def nonpad_kv_seqlen(start: Integer, rows: Integer, capacity: int, mode: Mode = "linear") -> int: ...
@overload
def nonpad_kv_seqlen(
    start: Indices, rows: Integer | Indices, capacity: int, mode: Mode = "linear"
) -> NDArray[np.int64]: ...
@overload
def nonpad_kv_seqlen(
    start: Integer, rows: Indices, capacity: int, mode: Mode = "linear"
) -> NDArray[np.int64]: ...
def nonpad_kv_seqlen(
    start: Integer | Indices, rows: Integer | Indices, capacity: int, mode: Mode = "linear"
) -> int | NDArray[np.int64]:
    """Converts ``write_indices`` to ONNX Attention's ``nonpad_kv_seqlen``.

    This is the length after the write. In circular mode it is at most the capacity.

    >>> nonpad_kv_seqlen(5, rows=2, capacity=8)
    7
    >>> nonpad_kv_seqlen(7, rows=2, capacity=8, mode="circular")
    8

    Raises:
            PositionError: The start is negative, the sum does not fit 64 bits, or it exceeds the capacity in
                linear mode.
        OptionError: The mode is neither ``"linear"`` nor ``"circular"``.
    """
    return _native.nonpad_kv_seqlen(start, rows, capacity, mode)


@overload
def start_from_nonpad_kv_seqlen(
    length: Integer, rows: Integer, capacity: int, mode: Mode = "linear"
) -> int: ...
@overload
def start_from_nonpad_kv_seqlen(
    length: Indices, rows: Integer | Indices, capacity: int, mode: Mode = "linear"
) -> NDArray[np.int64]: ...
@overload
def start_from_nonpad_kv_seqlen(
    length: Integer, rows: Indices, capacity: int, mode: Mode = "linear"
) -> NDArray[np.int64]: ...
def start_from_nonpad_kv_seqlen(
    length: Integer | Indices, rows: Integer | Indices, capacity: int, mode: Mode = "linear"
) -> int | NDArray[np.int64]:
    """Converts ONNX Attention's ``nonpad_kv_seqlen`` to ``write_indices``.

    >>> start_from_nonpad_kv_seqlen(7, rows=2, capacity=8)
    5

    Raises:
            PositionError: The length is smaller than the number of rows written, or larger than the
                capacity. In circular mode, a length equal to the capacity is an error too, because a full
                cache does not show how often it has wrapped.
        OptionError: The mode is neither ``"linear"`` nor ``"circular"``.
    """
    return _native.start_from_nonpad_kv_seqlen(length, rows, capacity, mode)
