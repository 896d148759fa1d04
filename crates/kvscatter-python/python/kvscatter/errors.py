"""Why a call was refused, in fields instead of prose.

After an error no array has changed. Match on the class, or on ``kind`` and the fields; the message is for people.

>>> from kvscatter import errors
>>> from kvscatter.positions import start_from_length_after
>>> try:
...     start_from_length_after(2, rows=3)
... except errors.PositionError as error:
...     error.kind, error.value, error.rows
('position', 2, 3)
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

    ``kind`` names the rule that was broken. Each kind has its own fields, which are attributes; an attribute that a
    kind does not have raises ``AttributeError``. Sizes and positions are counted in elements, rows or samples, as the
    message says. Errors can be pickled and copied.
    """

    kind: str
    """The rule that was broken, such as ``"start_out_of_range"``."""
    argument: str | None
    """The argument that broke it, as its specification spells it; None if it is not about a single one."""

    index: int
    """The sample, or the place in a list."""
    value: int
    """What was given there."""
    rows: int
    """Rows that were to be written."""
    capacity: int
    """Rows that the cache has."""
    min: int
    """The least that ``value`` may be."""
    max: int
    """The most that ``value`` may be."""
    got: int
    """A size or a count that was given."""
    want: int
    """What it must be."""
    expected: int | tuple[int, ...]
    """What a dimension must be, or the ranks that an array may have."""
    dimension: int
    """The place of a dimension in the shape."""
    rank: int
    """Dimensions of an array."""
    axis: int
    """The axis that was given."""
    element: str
    """The element type of ``argument``, by its NumPy name."""
    cache: int | str
    """What the cache has where ``argument`` has something else: a rank, a batch or an element type."""
    buffer: int
    """The place of a pair in a call over many."""
    update: int
    """What the update has where the cache has something else: a rank or a batch."""
    heads: int
    head_size: int
    hidden: int
    """What ``heads`` times ``head_size`` must be."""
    least: int
    """Dimensions that an array must have at least."""
    layers: int
    """Layers that the cache has."""
    tokens: int
    """Tokens that the update has."""
    previous: int
    """The value before ``value`` in a list that must not decrease."""
    loops: int
    """Strided loops that a copy would take; three are possible."""
    strides: int
    """How many strides were given."""
    itemsize: int
    """Bytes of an element."""
    offset: int
    needed: int
    """The least that ``offset`` must be, in elements from the beginning of a buffer; or bytes that caches take."""
    limit: int
    """The most bytes that they may take."""
    len: int
    """Bytes of a buffer."""
    with_: str
    """The argument that ``argument`` shares memory with."""
    with_buffer: int
    """The place of the pair that ``with_`` is of."""
    dtype: str
    """The dtype that was given, as its library names it."""
    device: str
    """Where an array lies, such as ``"cuda:0"``."""
    code: int
    """What the CUDA driver has returned."""
    what: str
    """What a prepared write was made for and has not been given: dtype, shape or strides; or what there is more of than
    a device counts."""

    def __init__(
        self, message: str, kind: str, argument: str | None = None, /, **fields: int | str | tuple[int, ...]
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

    got: Any
    """A dimension; or, of a whole array, dtype, shape or strides as text."""
    want: Any
    """What it must be."""


class OptionError(Error, ValueError):
    """An option that does not exist or does not apply: an axis, a mode, a policy, reserved bytes."""

    value: Any
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

    got: int
    """The device's compute capability, times ten, where it is too low."""


class SessionError(Error, RuntimeError):
    """A decoder that cannot be run, or nothing to run it with: the model, ONNX Runtime, a session that is closed."""


def _again(of: type[Error], args: tuple[object, ...]) -> Error:
    """An error without its fields, which pickle and copy put back."""
    return of.__new__(of, *args)
