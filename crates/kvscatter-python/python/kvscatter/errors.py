"""The errors of this package, with the details in fields.

After an error no array has changed, except on CUDA devices, where only bad samples are left out. Match on the
class, or on ``kind`` and the fields. The message is for people.

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
    "FileError",
    "ModelError",
    "OptionError",
    "PositionError",
    "SessionError",
    "ShapeError",
]


def __dir__() -> list[str]:
    return __all__


class Error(Exception):
    """The base class of every error of this package.

    ``kind`` names the rule that was broken. Each kind has its own fields, which are attributes. Every error
    has every attribute, and an attribute that its kind does not use is None. Sizes and positions are counted
    in elements, rows or samples, as the message states. Errors can be pickled and copied. A program can
    raise its own, such as ``ShapeError("the mask has 3 rows")``.
    """

    kind: str = "unspecified"
    """The rule that was broken, such as ``"start_out_of_range"``, or ``"unspecified"`` if the code that
    raised the error did not set it."""
    argument: str | None = None
    """The argument that broke the rule, as its specification spells it. None if the error is not about a
    single argument."""

    index: int | None = None
    """The sample, counted from 0, or the index in a list or in a row of a table."""
    sample: int | None = None
    """The sample, counted from 0, if ``index`` is not the sample."""
    value: int | None = None
    """The value that was given at ``index``, or for ``argument`` as a whole."""
    rows: int | None = None
    """The number of rows to write."""
    capacity: int | None = None
    """The number of rows that the cache has."""
    slots: int | None = None
    """The number of slots that a paged cache has."""
    blocks: int | None = None
    """The number of blocks that a paged cache has."""
    earlier: int | None = None
    """The index of the first token that has the slot."""
    min: int | None = None
    """The smallest allowed ``value``, ``rank`` or ``offset``."""
    max: int | None = None
    """The largest allowed ``value``, such as the number of free batch indices."""
    got: int | None = None
    """A size or a count that was given."""
    expected: int | tuple[int, ...] | None = None
    """The required ``got``, or the ranks that an array may have."""
    dimension: int | None = None
    """The index of a dimension in the shape."""
    rank: int | None = None
    """The number of dimensions of an array."""
    axis: int | None = None
    """The axis that was given."""
    element: str | None = None
    """The element type of ``argument``, by its NumPy name."""
    cache: int | str | None = None
    """The cache's rank, batch or element type, if that of ``argument`` differs."""
    pair: int | None = None
    """The index of a pair in a call with several pairs."""
    update: int | str | None = None
    """The update's rank, batch or element type, if that of the cache differs."""
    heads: int | None = None
    head_size: int | None = None
    hidden: int | None = None
    """The required product of ``heads`` and ``head_size``."""
    layers: int | None = None
    """The number of layers of the cache."""
    tokens: int | None = None
    """The number of tokens of the update."""
    previous: int | None = None
    """The value before ``value`` in a list that must not decrease."""
    loops: int | None = None
    """The number of strided loops that a copy would need. At most three are supported."""
    strides: int | None = None
    """The number of strides that were given."""
    itemsize: int | None = None
    """The number of bytes of an element."""
    offset: int | None = None
    needed: int | None = None
    """The number of bytes that a buffer must have, or that caches need."""
    limit: int | None = None
    """The largest allowed value of ``needed``."""
    address: int | None = None
    """The address where a buffer begins."""
    len: int | None = None
    """The number of bytes of a buffer."""
    with_: str | None = None
    """The argument that ``argument`` shares memory with."""
    with_pair: int | None = None
    """The index of the pair that contains ``with_``."""
    dtype: str | None = None
    """The dtype that was given, as its library names it."""
    device: str | None = None
    """The device of an array, such as ``"cuda:0"``."""
    code: int | None = None
    """The code that the CUDA driver returned."""
    what: str | None = None
    """The dtype, shape or strides that a prepared write expects and did not get. In other kinds, the
    quantity that exceeds the counters of a device."""

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
        """Returns the fields of this kind, by name."""
        # Python's own attributes, such as `__notes__`, begin with an underscore.
        own = {"kind", "argument"}
        return {name: value for name, value in vars(self).items() if name not in own and name[0] != "_"}

    def __repr__(self) -> str:
        fields = {"kind": self.kind, "argument": self.argument, **self.fields}
        listed = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        return f"{type(self).__name__}({str(self)!r}, {listed})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), vars(self).copy()


class ShapeError(Error, ValueError):
    """Ranks or dimensions do not match."""

    got: Any = None
    """A dimension, or the dtype, shape or strides of a whole array as text."""
    expected: Any = None
    """The required value."""


class OptionError(Error, ValueError):
    """An option, such as an axis, a mode or a policy, does not exist or does not apply."""

    value: Any = None
    """The option as it was given."""


class ElementTypeError(Error, TypeError):
    """The operator does not accept an element type, or two types differ that must be the same."""


class PositionError(Error, IndexError):
    """Positions, lengths or layers do not fit, or a list of them has too few or too many values."""


class ArrayError(Error, ValueError):
    """Memory cannot be read or written because of its strides, because it overlaps, or because it is
    read-only."""


class DeviceError(ArrayError):
    """An array is on a device that the call does not support."""


class CudaError(Error, RuntimeError):
    """The CUDA driver is missing or returned an error, or this thread has no current device."""

    got: int | None = None
    """The device's compute capability times ten, if it is too low."""


class SessionError(Error, RuntimeError):
    """A decoder cannot run, because of the model, because of ONNX Runtime, because the session is closed or
    busy, or because its logits contain NaN and it refuses that."""


class FileError(Error, OSError):
    """A file cannot be read, written or replaced. ``errno`` is not set."""


class ModelError(Error, ValueError):
    """A model is broken or cannot be evaluated, or the inputs do not match its declarations.

    ``kind`` names the case. If the error is about a part of the model, these attributes identify the part:
    ``node``, ``node_name`` and ``op_type``, or ``tensor``, or ``file``, or ``value_name``. If a call breaks a
    rule of ``TensorScatter`` itself, the error is a different class of this package, such as
    ``PositionError``. Its cause is then a ``ModelError`` that names the node.
    """

    node: int | None = None
    """The node's index in its graph."""
    node_name: str | None = None
    op_type: str | None = None
    tensor: str | None = None
    """The name of the initializer or the constant."""
    file: str | None = None
    """The file of the model, or the file of its external data."""
    value_name: str | None = None
    """The name of the input, or of the value in the graph."""


def _again(of: type[Error], args: tuple[object, ...]) -> Error:
    """Returns an error without its fields, which pickle and copy then set again."""
    error = of.__new__(of, *args)
    # The constructor of OSError does not set them.
    error.args = args
    return error
