"""The four ways to say where to write, and the way from each to each.

Mixing them up is the field's commonest off-by-one:

=====================  ====================  ==================================================
system                 its number            means
=====================  ====================  ==================================================
ONNX, TensorRT         ``write_indices``     first slot written
ONNX Attention         ``nonpad_kv_seqlen``  length *after* the write
Ascend ATB             ``tokenOffset``       end: length after the write
GroupQueryAttention    ``seqlens_k``         *last index*: length after the write, less 1
=====================  ====================  ==================================================

One write, four numbers. A cache of 8 slots has 5 tokens of one sample, and 2 more are written after them:

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

A batch is an array, and the result one as well; ``rows`` may then differ from sample to sample:

>>> positions.token_offset([5, 0], rows=2)
array([7, 2])
>>> positions.start_from_token_offset([7, 2], rows=[2, 1])
array([5, 1])

``rows`` is how many rows of the sample are written, right padding included: for causal Attention after a
``TensorScatter``, query ``i`` sees key ``j <= i + nonpad_kv_seqlen - q_len``, so the length to pass is
``write_indices + q_len``, and the *next* write index then subtracts the padding.

Positions are unwrapped: in a ring they keep growing, and only :func:`nonpad_kv_seqlen` stops at the capacity.

Every function takes integers and returns an ``int``; where the position, ``rows`` or both are an integer array or a
sequence of ``int``, one per sample, it returns a NumPy array of int64. Every one raises
:class:`kvscatter.PositionError` for a position that no write can have; ``error.index`` is the sample.
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


@overload
def length_after(start: Integer, rows: Integer) -> int: ...
@overload
def length_after(start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def length_after(start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def length_after(start: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """``write_indices`` → length after the write.

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
    """Length after the write → ``write_indices``.

    >>> start_from_length_after(7, rows=2)
    5

    Raises:
        PositionError: Fewer rows than were written are counted.
    """
    return _native.start_from_length_after(length, rows)


@overload
def token_offset(start: Integer, rows: Integer) -> int: ...
@overload
def token_offset(start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def token_offset(start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def token_offset(start: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """``write_indices`` → Ascend's ``tokenOffset``; ``rows`` is its ``seqLen``.

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
    """Ascend's ``tokenOffset`` → ``write_indices``.

    >>> start_from_token_offset(7, rows=2)
    5

    Raises:
        PositionError: The offset is below the rows written.
    """
    return _native.start_from_token_offset(token_offset, rows)


@overload
def seqlens_k(start: Integer, rows: Integer) -> int: ...
@overload
def seqlens_k(start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def seqlens_k(start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def seqlens_k(start: Integer | Indices, rows: Integer | Indices) -> int | NDArray[np.int64]:
    """``write_indices`` → GroupQueryAttention's ``seqlens_k``; -1 for a sample that is still empty.

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
    """GroupQueryAttention's ``seqlens_k`` → ``write_indices``.

    >>> start_from_seqlens_k(6, rows=2)
    5

    Raises:
        PositionError: Fewer rows than were written lie up to there.
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
    """``write_indices`` → ONNX Attention's ``nonpad_kv_seqlen``: the length after the write, which in a ring stops at
    the capacity.

    >>> nonpad_kv_seqlen(5, rows=2, capacity=8)
    7
    >>> nonpad_kv_seqlen(7, rows=2, capacity=8, mode="circular")
    8

    Raises:
        PositionError: The start is negative, the sum does not fit 64 bits, or, linear, it exceeds the capacity.
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
    """ONNX Attention's ``nonpad_kv_seqlen`` → ``write_indices``.

    >>> start_from_nonpad_kv_seqlen(7, rows=2, capacity=8)
    5

    Raises:
        PositionError: Fewer rows than were written are counted, or more than the capacity; in a ring also as many as
            the capacity, since a full one does not tell how often it has wrapped.
        OptionError: The mode is neither ``"linear"`` nor ``"circular"``.
    """
    return _native.start_from_nonpad_kv_seqlen(length, rows, capacity, mode)
