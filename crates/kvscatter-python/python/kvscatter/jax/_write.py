"""The write as a function that JAX can transform.

Each layer serves one transformation, and hides the layers inside it from the others: a ``custom_jvp`` composes
derivatives of JAX's own operations, a ``custom_vmap`` makes the items of ``vmap`` more samples of one call, and a
``custom_partitioning`` lets each device write its own part. The innermost layer is the custom call of XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import zero_from_primal
from jax.experimental.custom_partitioning import custom_partitioning
from jax.export import is_symbolic_dim
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kvscatter import _native, errors

TARGET: Final = "kvscatter_tensor_scatter"
"""The name of the custom call, for the list of calls that ``jax.export`` allows."""

Results = tuple[jax.Array, ...]

for _platform, _handler in _native.xla_handlers().items():
    jax.ffi.register_ffi_target(TARGET, _handler, platform=_platform)


@cache
def write(lists: int, axis: int, mode: str, skips: bool) -> Callable[..., Results]:
    """Returns the function of a past, an update and ``lists`` lists: the indices, and perhaps the lengths.

    It returns the present and, with ``skips``, a bool for each sample, ``[batch]``.
    """

    @custom_vmap
    def batchable(past: jax.Array, update: jax.Array, *lists: jax.Array) -> Results:
        return _on_devices(past, update, *lists, axis=axis, mode=mode, skips=skips)

    @batchable.def_vmap
    def batching_rule(items: int, is_batched: list[bool], *operands: jax.Array) -> tuple[Results, Any]:
        samples = [as_samples(*it, items) for it in zip(operands, is_batched, strict=True)]
        batch = operands[0].shape[is_batched[0]]
        results = differentiable(*samples)
        return tuple(it.reshape(items, batch, *it.shape[1:]) for it in results), (True,) * len(results)

    @jax.custom_jvp
    def differentiable(past: jax.Array, update: jax.Array, *lists: jax.Array) -> Results:
        results: Results = batchable(past, update, *lists)
        return results

    @differentiable.defjvp
    def with_tangents(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[Results, Results]:
        results = differentiable(*primals)
        skipped = results[1] if skips else None
        changed = _composed(tangents[0], tangents[1], primals[2:], skipped, axis, mode)
        return results, (changed, *(zero_from_primal(it) for it in results[1:]))

    return differentiable


def as_samples(operand: jax.Array, is_batched: bool, items: int) -> jax.Array:
    """Turns the items of vmap into more samples. Like samples, items are independent of each other."""
    if not is_batched:
        operand = jnp.broadcast_to(operand, (items, *operand.shape))
    return operand.reshape(items * operand.shape[1], *operand.shape[2:])


def _composed(
    past: jax.Array,
    update: jax.Array,
    lists: Sequence[jax.Array],
    skipped: jax.Array | None,
    axis: int,
    mode: str,
) -> jax.Array:
    """Returns the present of tangents, by operations whose derivatives JAX knows. The write is linear in both."""
    capacity, rows = past.shape[axis], update.shape[axis]
    if past.dtype == jax.dtypes.float0 or capacity == 0 or rows == 0:
        return past
    slots, starts = jnp.arange(capacity), lists[0][:, None]
    # The row that each slot receives. The positions of samples that are not skipped fit 32 bits, or the program ends
    # with an error unless nothing reads the present.
    if mode == "circular":
        row = (slots - (starts % capacity).astype(jnp.int32)) % capacity
    else:
        row = slots - starts.astype(jnp.int32)
    counts = lists[1][:, None].astype(jnp.int32) if len(lists) > 1 else rows
    is_written = (row >= 0) & (row < counts)
    if skipped is not None:
        is_written &= ~skipped[:, None]
    shape = [size if dim in (0, axis) else 1 for dim, size in enumerate(past.shape)]
    taken = jnp.take_along_axis(update, jnp.clip(row, 0, rows - 1).reshape(shape), axis=axis)
    return jnp.where(is_written.reshape(shape), taken, past)


def _call(
    past: jax.Array, update: jax.Array, *lists: jax.Array, axis: int, mode: str, skips: bool
) -> Results:
    present = jax.ShapeDtypeStruct(past.shape, past.dtype)
    skipped = jax.ShapeDtypeStruct(past.shape[:1], np.bool_)
    status = jax.ShapeDtypeStruct((4,), np.uint32)

    def call(results: list[Any], *operands: jax.Array) -> Results:
        write = jax.ffi.ffi_call(TARGET, results, input_output_aliases={0: 0})
        return tuple(write(*operands, axis=np.int64(axis), mode=mode, skips=skips))

    def on_cpu(*operands: jax.Array) -> Results:
        return call([present, skipped][: 1 + skips], *operands)

    def on_cuda(*operands: jax.Array) -> Results:
        written, _ = call([present, status], *operands)
        return (written, _misfits(past.shape[axis], update.shape[axis], operands[2:], mode))[: 1 + skips]

    # The default is the CPU. JAX refuses to compile for other platforms, because they have no handler.
    results: Results = jax.lax.platform_dependent(past, update, *lists, cuda=on_cuda, default=on_cpu)
    return results


def _misfits(capacity: int, rows: int, lists: Sequence[jax.Array], mode: str) -> jax.Array:
    """Returns True for each sample that does not fit, ``[batch]``.

    On the CPU the call returns this list, but a launch on a GPU returns only a count. A test compares the two.
    """
    wide = jax.dtypes.canonicalize_dtype(np.int64)
    starts, *lengths = (values.astype(wide) for values in lists)
    counts = lengths[0] if lengths else jnp.full_like(starts, rows)
    is_bad = (counts < 0) | (counts > rows)
    if mode == "linear":
        last: Any = capacity if is_symbolic_dim(capacity) else min(capacity, np.iinfo(wide).max)
        is_bad |= (starts < 0) | (starts > last - counts)
    return is_bad


def _on_devices(
    past: jax.Array, update: jax.Array, *lists: jax.Array, axis: int, mode: str, skips: bool
) -> Results:
    """Makes the call on each device with a part of the cache."""
    call = _partitioned(past.ndim, len(lists), axis, mode, skips)
    results: Results = call(past, update, *lists)
    return tuple(varying_like(it, (past, update, *lists)) for it in results)


def varying_like(result: jax.Array, operands: Sequence[jax.Array]) -> jax.Array:
    """Returns the result of a call, which inside of shard_map varies over the same axes as the operands. JAX cannot
    know it of a call."""
    axes = frozenset[str]().union(*(_varying(operand) for operand in operands))
    return jax.lax.pcast(result, tuple(axes), to="varying") if axes else result


def _varying(operand: jax.Array) -> frozenset[str]:
    kind: Any = jax.typeof(operand)
    axes: frozenset[str] = kind.mat.varying
    return axes


def check_implicit(argument: str, operand: jax.Array) -> None:
    """Refuses explicit shardings, which are part of a type that the call does not know."""
    kind: Any = jax.typeof(operand)
    mesh = kind.sharding.mesh
    if any(it == AxisType.Explicit for it in mesh.axis_types) and any(kind.sharding.spec):
        message = (
            f"{argument} has the explicit sharding {kind.sharding.spec}: give the mesh axis_types of AxisType.Auto, "
            "or call the write inside of jax.shard_map"
        )
        raise errors.OptionError(message, "placement", argument)


@cache
def _partitioned(rank: int, lists: int, axis: int, mode: str, skips: bool) -> Callable[..., Results]:
    """Returns the call with its rule for devices: a cache may be sharded along all dimensions except the
    sequence, and each device writes its own part.

    The other operands and the results follow the cache, and XLA moves what is elsewhere.
    """
    local = partial(_call, axis=axis, mode=mode, skips=skips)

    def partition(mesh: Mesh, operands: Any, results: Any) -> tuple[Mesh, Any, Any, Any]:
        for argument, operand in zip(("past", "update"), operands, strict=False):
            _check_sequence(argument, placement(operand)[axis], axis)
        of_cache, of_samples = _placements(mesh, operands[0])
        placed = of_cache, of_cache, *[of_samples] * lists
        return mesh, local, (of_cache, of_samples)[: 1 + skips], placed

    def infer(mesh: Mesh, operands: Any, _: Any) -> tuple[NamedSharding, ...]:
        return _placements(mesh, operands[0])[: 1 + skips]

    def whole(past: jax.Array, update: jax.Array, *lists: jax.Array) -> Results:
        return local(past, update, *lists)

    sizes = [f"d{dim}" for dim in range(rank)]
    past, update = (" ".join([*sizes[:axis], sequence, *sizes[axis + 1 :]]) for sequence in ("slots", "rows"))
    operands, results = [past, update, *["d0"] * lists], [past, "d0"][: 1 + skips]
    call = custom_partitioning(whole)
    rule = f"{', '.join(operands)} -> {', '.join(results)}"
    call.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return call


def _placements(mesh: Mesh, past: Any) -> tuple[NamedSharding, NamedSharding]:
    """Returns the placement of a cache, and that of a list with a value for each sample.

    A batch that does not divide evenly is not split, because the devices would get samples that do not exist.
    """
    batch, *others = placement(past)
    names = batch if isinstance(batch, tuple) else () if batch is None else (batch,)
    if past.shape[0] % math.prod(mesh.shape[name] for name in names):
        batch = None
    return NamedSharding(mesh, PartitionSpec(batch, *others)), NamedSharding(mesh, PartitionSpec(batch))


def placement(operand: Any) -> tuple[Any, ...]:
    """Returns the mesh axes of each dimension."""
    rank = len(operand.shape)
    if operand.sharding.is_fully_replicated:
        return (None,) * rank
    if not isinstance(operand.sharding, NamedSharding):
        message = (
            f"an operand has the sharding {operand.sharding}, which names no axes of a mesh: inside of a jax.shard_map "
            "over some axes, nest another one over the axes that are left"
        )
        raise errors.OptionError(message, "placement")
    return (*operand.sharding.spec, *[None] * rank)[:rank]


def _check_sequence(argument: str, names: Any, axis: int) -> None:
    if names is not None:
        message = (
            f"{argument} is sharded along its sequence (dimension {axis}), perhaps because a result is, so a write "
            "would go to only one shard: shard the batch, the heads or the head size"
        )
        raise errors.OptionError(message, "placement", argument)
