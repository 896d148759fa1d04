"""Decides which steps a ring for a window takes, and how large it must be.

A layer with a window needs only the last rows, so its cache can be a ring (``mode="circular"``). Each query sees
its own position and the ``window - 1`` positions before it. A step that is too long, or a sample that is taken
back too far, overwrites rows that a query still needs. The write succeeds, and attention reads wrong rows. So
choose the capacity with :func:`least_capacity`, and test each step before you run it:

>>> from kvscatter import ring
>>> capacity = ring.least_capacity(window=8, rows=4, rewind=2)
>>> capacity
11
>>> high = 0
>>> for start in range(0, 100, 4):
...     assert ring.most_rows(capacity, 8, high, start) >= 4
...     high = ring.high_after(high, start, rows=4)

The sample can now be taken back to position 96, and not to 95:

>>> ring.least_start(capacity, 8, high)
96
>>> ring.most_rows(capacity, 8, high, start=95)
0

``high`` is one more than the furthest position written so far, padding included. It is 0 for a new sample.
Positions keep growing and are not taken modulo the capacity. All earlier steps must have been exact. For a
sample with padding on the left, :func:`most_rows` may return less than the sample takes.

``high``, ``start`` and ``rows`` can also be an integer array or a sequence of ``int``, with one value per
sample. The functions then return a NumPy array of int64. A result that is larger than ``2**63 - 1`` is returned
as ``2**63 - 1``, which no memory has room for. Every function raises :class:`kvscatter.PositionError` for a
negative number.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from kvscatter._native import ring as _native
from kvscatter._typing import Feeding, Indices, Integer

__all__ = ["high_after", "least_capacity", "least_start", "most_rows"]


def __dir__() -> list[str]:
    return __all__


@overload
def most_rows(capacity: Integer, window: Integer, high: Integer, start: Integer) -> int: ...
@overload
def most_rows(
    capacity: Integer, window: Integer, high: Indices, start: Integer | Indices
) -> NDArray[np.int64]: ...
@overload
def most_rows(capacity: Integer, window: Integer, high: Integer, start: Indices) -> NDArray[np.int64]: ...
def most_rows(
    capacity: Integer, window: Integer, high: Integer | Indices, start: Integer | Indices
) -> int | NDArray[np.int64]:
    """Returns the largest number of rows that a step can write from position ``start`` on, so that each of its
    queries sees its window. Returns 0 if there is no such step. Padding that is written counts as rows.

    ``high`` does not matter if ``start`` is 0, because the sample then starts over.

    >>> most_rows(11, 8, high=100, start=100)
    4
    >>> most_rows(11, 8, high=[100, 100], start=[96, 95])
    array([4, 0])
    """
    return _native.most_rows(capacity, window, high, start)


@overload
def least_start(capacity: Integer, window: Integer, high: Integer) -> int: ...
@overload
def least_start(capacity: Integer, window: Integer, high: Indices) -> NDArray[np.int64]: ...
def least_start(capacity: Integer, window: Integer, high: Integer | Indices) -> int | NDArray[np.int64]:
    """Returns the lowest position above 0 from which a step can still start, or 0 if every position is
    possible. A sample that is taken back further must start over at 0.

    The capacity must be at least the window.

    >>> least_start(11, 8, high=100)
    96
    """
    return _native.least_start(capacity, window, high)


@overload
def high_after(high: Integer, start: Integer, rows: Integer) -> int: ...
@overload
def high_after(high: Indices, start: Integer | Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def high_after(high: Integer, start: Indices, rows: Integer | Indices) -> NDArray[np.int64]: ...
@overload
def high_after(high: Integer, start: Integer, rows: Indices) -> NDArray[np.int64]: ...
def high_after(
    high: Integer | Indices, start: Integer | Indices, rows: Integer | Indices
) -> int | NDArray[np.int64]:
    """Returns one more than the furthest position written, after a step of ``rows`` rows from position
    ``start`` on. ``high`` is the number before the step.

    A sample that starts over at 0 reads nothing that was written before, so ``high`` starts over too.

    >>> high_after(100, start=96, rows=2)
    100
    >>> high_after(100, start=[99, 0], rows=2)
    array([101,   2])
    """
    return _native.high_after(high, start, rows)


def least_capacity(
    window: Integer, rows: Integer, rewind: Integer = 0, feeding: Feeding = "without_padding"
) -> int:
    """Returns the least number of slots for steps of up to ``rows`` rows, if a sample is never taken back by
    more than ``rewind`` tokens below its furthest one.

    Rewinds add up until the furthest token is passed: back 5, forward 1 and back 5 is a rewind of 9.

    ``feeding`` is what a step contains besides tokens. With ``"without_padding"``, it writes tokens only, or
    ``lengths`` leaves the padding out. With ``"padded_on_the_right"``, it is padded and has at least one token.
    With ``"idle"``, it may also consist of padding alone, for a sample that waits for others.

    >>> least_capacity(8, rows=4, rewind=2)
    11
    >>> least_capacity(8, rows=4, rewind=2, feeding="idle")
    13

    Raises:
        OptionError: ``feeding`` is none of these words.
    """
    return _native.least_capacity(window, rows, rewind, feeding)
