"""The operator: checks what JAX knows when it traces a program, and makes the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.export import is_symbolic_dim
from jax.typing import ArrayLike

from kvscatter import _native, errors
from kvscatter._dtypes import ONNX_NAMES
from kvscatter._typing import Mode, OutOfRange
from kvscatter.jax._write import check_implicit, write

Integers: TypeAlias = ArrayLike | Sequence[int]


@overload
def tensor_scatter(
    past: ArrayLike,
    update: ArrayLike,
    write_indices: Integers | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Integers | None = None,
    out_of_range: Literal["error"] = "error",
) -> jax.Array: ...
@overload
def tensor_scatter(
    past: ArrayLike,
    update: ArrayLike,
    write_indices: Integers | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Integers | None = None,
    out_of_range: Literal["skip"],
) -> tuple[jax.Array, jax.Array]: ...
def tensor_scatter(
    past: ArrayLike,
    update: ArrayLike,
    write_indices: Integers | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Integers | None = None,
    out_of_range: OutOfRange = "error",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Returns ``past`` with ``update`` written into it, by ONNX TensorScatter-24.

    The write is in place if XLA may reuse the memory of ``past``: in a compiled function that donates it, or
    whose loop carries it. Otherwise XLA copies ``past`` first.

    Args:
        past: ``[batch, .., capacity, ..]``, of any type of TensorScatter that JAX has.
        update: An array with the dimensions of ``past``, except for ``axis``. That dimension is the number of
            rows to write, at most ``capacity``.
        write_indices: The slot of each sample's first row, ``[batch]``. The default is zeros.
        axis: The sequence dimension, which can be any but the first.
        mode: ``"linear"``, or ``"circular"`` to take slots modulo the capacity.
        lengths: The number of rows of each sample that are not padding, ``[batch]``. Padding after them is
            not written. kvscatter extension; not part of the specification.
        out_of_range: ``"error"``, or ``"skip"`` to leave a sample that does not fit unchanged. kvscatter
            extension; not part of the specification.

    Returns:
        The new cache. With ``out_of_range="skip"``, the new cache and the number of samples that were
        skipped, int32.

    Raises:
        ElementTypeError: TensorScatter does not have the type, the two types differ, or indices are not
            integers.
        ShapeError: Ranks or dimensions differ, or the update is longer than the cache.
        OptionError: The axis does not exist or is the batch, or a mode or policy does not exist.
        jax.errors.JaxRuntimeError: A position does not fit, or a length exceeds the rows of the update. JAX runs
            programs asynchronously, and raises the error when a result is used. Some versions raise ValueError.
            The message is that of ``kvscatter.tensor_scatter``, with the index of the sample in the call: among
            the samples of one device, or of all items of ``vmap``. A donated past is lost then, as after any
            error in JAX.
    """
    past, update = _array(past, "past"), _array(update, "update")
    if update.dtype != past.dtype:
        message = f"update is {update.dtype}, but the cache is {past.dtype}: both must have the same type"
        raise errors.ElementTypeError(message, "element_type_mismatch", "update")
    starts = jnp.zeros(past.shape[:1], jnp.int32) if write_indices is None else write_indices
    lists = [integers(starts, "write_indices")]
    if lengths is not None:
        lists.append(integers(lengths, "lengths"))
    sizes = _known_sizes(past.shape, update.shape, [values.shape[0] for values in lists])
    sequence = _native.xla_check(*sizes, axis, mode, out_of_range)
    skips = out_of_range == "skip"
    present, *skipped = write(len(lists), sequence, mode, skips)(past, update, *lists)
    return (present, jnp.sum(skipped[0], dtype=jnp.int32)) if skips else present


def _array(value: ArrayLike, argument: str) -> jax.Array:
    array = jnp.asarray(value)
    check_implicit(argument, array)
    if array.dtype.name not in ONNX_NAMES:
        message = f"{argument} has dtype {array.dtype}, which is not a type of TensorScatter"
        raise errors.ElementTypeError(message, "element_type", argument)
    return array


def _known_sizes(
    past: Sequence[Any], update: Sequence[Any], counts: Sequence[Any]
) -> tuple[list[int], list[int], list[int]]:
    """Replaces by 1, in both shapes, each dimension that is symbolic in one of them (``jax.export``). The write checks
    these dimensions when the program runs."""
    symbolic = {dim for shape in (past, update) for dim, size in enumerate(shape) if is_symbolic_dim(size)}
    if any(is_symbolic_dim(count) for count in counts):
        symbolic.add(0)
    known = [[1 if dim in symbolic else size for dim, size in enumerate(shape)] for shape in (past, update)]
    return known[0], known[1], [1 if 0 in symbolic else count for count in counts]


def integers(values: Integers, argument: str) -> jax.Array:
    """Returns indices or lengths as integers of 32 or 64 bits, ``[batch]``."""
    if isinstance(values, Sequence) and any(isinstance(value, jax.Array) for value in values):
        values = jnp.stack([jnp.asarray(value) for value in values])
    if not isinstance(values, jax.Array):
        values = np.asarray(values, np.int64 if np.size(values) == 0 else None)
        _check_width(values, argument)
    if not jnp.issubdtype(values.dtype, jnp.integer):
        message = f"{argument} holds {values.dtype}: must hold integers"
        raise errors.ElementTypeError(message, "not_integers", argument)
    if values.ndim != 1:
        message = f"{argument} has {values.ndim} dimensions, must have 1: one value per sample"
        raise errors.ShapeError(message, "rank", argument, rank=values.ndim)
    array = jnp.asarray(values)
    check_implicit(argument, array)
    return array if array.dtype.itemsize >= 4 else array.astype(jnp.int32)


def _check_width(values: npt.NDArray[Any], argument: str) -> None:
    """Checks that JAX does not drop bits of indices. Unless 64-bit types are enabled, it keeps the lower 32."""
    if values.dtype.itemsize <= 4 or values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        return
    kept = values.astype(jax.dtypes.canonicalize_dtype(values.dtype))
    for index in np.flatnonzero(kept != values):
        message = f"{argument}[{index}] = {values[index]}: does not fit 32 bits, and jax_enable_x64 is off"
        raise errors.PositionError(
            message, "integer_range", argument, index=int(index), value=int(values[index])
        )
