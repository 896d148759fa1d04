"""The write as a function that JAX can transform.

From the outside in, a write is a ``custom_jvp``, a ``custom_vmap``, a ``custom_partitioning`` and the custom call
of XLA. So derivatives are composed of JAX's own operations, the items of ``vmap`` become samples of one call, and
devices with parts of the batch or the heads write without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import zero_from_primal
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kvscatter import _native, errors

TARGET: Final = "kvscatter_tensor_scatter"
"""The name of the custom call, for the list of calls that ``jax.export`` allows."""

Results = tuple[jax.Array, ...]

jax.ffi.register_ffi_target(TARGET, _native.xla_tensor_scatter(), platform="cpu")


@cache
def write(lists: int, axis: int, mode: str, skips: bool) -> Callable[..., Results]:
    """Returns the function of a past, an update and ``lists`` lists: the indices, and perhaps the lengths.

    It returns the present and, if it skips samples, whether each was skipped, ``[batch]``.
    """

    @custom_vmap
    def of_samples(past: jax.Array, update: jax.Array, *lists: jax.Array) -> Results:
        return _partitioned(past.ndim, len(lists), axis, mode, skips)(past, update, *lists)

    @of_samples.def_vmap
    def of_items(items: int, is_batched: list[bool], *operands: jax.Array) -> tuple[Results, Any]:
        results = of_any(*(_as_samples(*it, items) for it in zip(operands, is_batched, strict=True)))
        unfolded = (it.reshape(items, it.shape[0] // items, *it.shape[1:]) for it in results)
        return tuple(unfolded), (True,) * len(results)

    @jax.custom_jvp
    def of_any(past: jax.Array, update: jax.Array, *lists: jax.Array) -> Results:
        results: Results = of_samples(past, update, *lists)
        return results

    @of_any.defjvp
    def with_tangents(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[Results, Results]:
        results = of_any(*primals)
        skipped = results[1] if skips else None
        changed = _composed(tangents[0], tangents[1], primals[2:], skipped, axis, mode)
        return results, (changed, *(zero_from_primal(it) for it in results[1:]))

    return of_any


def _as_samples(operand: jax.Array, is_batched: bool, items: int) -> jax.Array:
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
    # The row that each slot receives. The call has checked the positions of all samples that it does not skip, so
    # they fit 32 bits.
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
    results = [jax.ShapeDtypeStruct(past.shape, past.dtype)]
    if skips:
        results.append(jax.ShapeDtypeStruct(past.shape[:1], np.bool_))
    call = jax.ffi.ffi_call(TARGET, results, input_output_aliases={0: 0})
    return tuple(call(past, update, *lists, axis=np.int64(axis), mode=mode))


@cache
def _partitioned(rank: int, lists: int, axis: int, mode: str, skips: bool) -> Callable[..., Results]:
    """Returns the call with its rule for devices: a cache may be sharded along all dimensions except the
    sequence, and each device writes its own part."""
    local = partial(_call, axis=axis, mode=mode, skips=skips)

    def partition(mesh: Mesh, operands: Any, results: Any) -> tuple[Mesh, Any, Any, Any]:
        shardings = tuple(operand.sharding for operand in operands)
        for argument, sharding in zip(("past", "update"), shardings, strict=False):
            _check_sharding(argument, sharding, axis)
        return mesh, local, tuple(result.sharding for result in results), shardings

    def infer(mesh: Mesh, operands: Any, _: Any) -> tuple[NamedSharding, ...]:
        past = operands[0].sharding
        by_sample = NamedSharding(mesh, PartitionSpec(*past.spec[:1]))
        return (past, by_sample)[: 1 + skips]

    def whole(past: jax.Array, update: jax.Array, *lists: jax.Array) -> Results:
        return local(past, update, *lists)

    sizes = [f"d{dim}" for dim in range(rank)]
    past, update = (" ".join([*sizes[:axis], sequence, *sizes[axis + 1 :]]) for sequence in ("slots", "rows"))
    operands, results = [past, update, *["d0"] * lists], [past, "d0"][: 1 + skips]
    call = custom_partitioning(whole)
    rule = f"{', '.join(operands)} -> {', '.join(results)}"
    call.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return call


def _check_sharding(argument: str, sharding: NamedSharding, axis: int) -> None:
    names = (*sharding.spec, *[None] * axis)[axis]
    if names is not None:
        message = (
            f"{argument} is sharded along its sequence (dimension {axis}), so a write would go to only one shard: "
            "shard the batch, the heads or the head size"
        )
        raise errors.OptionError(message, "placement", argument)
