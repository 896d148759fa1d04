"""Why a call was refused, in fields instead of prose.

After an error no array has changed. Match on the class, or on ``kind`` and the fields; the message is for people.

>>> from kvscatter import errors
>>> from kvscatter.positions import start_from_length_after
>>> try:
...     start_from_length_after(2, rows=3)
... except errors.PositionError as error:
...     error.kind, error.value, error.rows
('invalid_position', 2, 3)
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArrayError",
    "CudaError",
    "DeviceError",
    "ElementTypeError",
    "Error",
    "OptionError",
    "PositionError",
    "SessionError",
    "ShapeError",
]


class Error(Exception):
    """What every error of this package is.

    ``kind`` names the rule that was broken. Each kind has its own fields, which are attributes. Every error has every
    attribute: those that its kind does not use are None. Sizes and positions are counted in elements, rows or samples,
    as the message states. Errors can be pickled and copied, and a program can raise its own, such as
    ``ShapeError("the mask has 3 rows")``.
    """

    kind: str = "unspecified"
    """The rule that was broken, such as ``"start_out_of_range"``; ``"unspecified"`` if the code that raised it named
    none."""
    argument: str | None = None
    """The argument that broke it, as its specification spells it; None if it is not about a single one."""

    index: int | None = None
    """The sample, or the index in a list."""
    value: int | None = None
    """What was given there."""
    rows: int | None = None
    """Rows that were to be written."""
    capacity: int | None = None
    """Rows that the cache has."""
    min: int | None = None
    """The smallest that ``value``, ``rank`` or ``offset`` may be."""
    max: int | None = None
    """The most that ``value`` may be."""
    got: int | None = None
    """A size or a count that was given."""
    expected: int | tuple[int, ...] | None = None
    """What ``got`` must be, or the ranks that an array may have."""
    dimension: int | None = None
    """The index of a dimension in the shape."""
    rank: int | None = None
    """Dimensions of an array."""
    axis: int | None = None
    """The axis that was given."""
    element: str | None = None
    """The element type of ``argument``, by its NumPy name."""
    cache: int | str | None = None
    """What the cache has where ``argument`` has something else: a rank, a batch or an element type."""
    pair: int | None = None
    """The index of a pair in a call over many."""
    update: int | str | None = None
    """What the update has where the cache has something else: a rank, a batch or an element type."""
    heads: int | None = None
    head_size: int | None = None
    hidden: int | None = None
    """What ``heads`` times ``head_size`` must be."""
    layers: int | None = None
    """Layers that the cache has."""
    tokens: int | None = None
    """Tokens that the update has."""
    previous: int | None = None
    """The value before ``value`` in a list that must not decrease."""
    loops: int | None = None
    """Strided loops that a copy would take; three are possible."""
    strides: int | None = None
    """How many strides were given."""
    itemsize: int | None = None
    """Bytes of an element."""
    offset: int | None = None
    needed: int | None = None
    """Bytes that a buffer must have, or that caches take."""
    limit: int | None = None
    """The most bytes that they may take."""
    address: int | None = None
    """Where a buffer begins."""
    len: int | None = None
    """Bytes of a buffer."""
    with_: str | None = None
    """The argument that ``argument`` shares memory with."""
    with_pair: int | None = None
    """The index of the pair that ``with_`` is of."""
    dtype: str | None = None
    """The dtype that was given, as its library names it."""
    device: str | None = None
    """Where an array lies, such as ``"cuda:0"``."""
    code: int | None = None
    """What the CUDA driver has returned."""
    what: str | None = None
    """What a prepared write was made for and has not been given: dtype, shape or strides; or what there is more of than
    a device counts."""

    def __init__(
        self,
        message: str = "",
        kind: str = "unspecified",
        argument: str | None = None,
        /,
        **fields: int | str | tuple[int, ...],
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.argument = argument
        vars(self).update(fields)

    @property
    def fields(self) -> dict[str, int | str | tuple[int, ...]]:
        """The fields of this kind, by name."""
        # What begins with an underscore is Python's: `__notes__`.
        own = {"kind", "argument"}
        return {name: value for name, value in vars(self).items() if name not in own and name[0] != "_"}

    def __repr__(self) -> str:
        fields = {"kind": self.kind, "argument": self.argument, **self.fields}
        listed = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        return f"{type(self).__name__}({str(self)!r}, {listed})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), vars(self).copy()


class ShapeError(Error, ValueError):
    """Ranks and dimensions that do not go together."""

    got: Any = None
    """A dimension; or, of a whole array, dtype, shape or strides as text."""
    expected: Any = None
    """What it must be."""


class OptionError(Error, ValueError):
    """An option that does not exist or does not apply: an axis, a mode, a policy."""

    value: Any = None
    """The option as it was given."""


class ElementTypeError(Error, TypeError):
    """An element type that the operator does not take, or two that must be one."""


class PositionError(Error, IndexError):
    """Positions, lengths or layers that do not fit, and lists of them with too few or too many values."""


class ArrayError(Error, ValueError):
    """Memory that cannot be read or written: strides, overlap, read-only arrays."""


class DeviceError(ArrayError):
    """An array on another device than the call is for."""


class CudaError(Error, RuntimeError):
    """The CUDA driver: there is none, it refuses, or no device has been chosen on this thread."""

    got: int | None = None
    """The device's compute capability, times ten, where it is too low."""


class SessionError(Error, RuntimeError):
    """A decoder that cannot be run, or nothing to run it with: the model, ONNX Runtime, a session that is closed."""


def _again(of: type[Error], args: tuple[object, ...]) -> Error:
    """An error without its fields, which pickle and copy put back."""
    return of.__new__(of, *args)
