"""Sharding rules of the write for PyTorch's distributed tensors (`torch.distributed.tensor.DTensor`).

Importing this module registers the rules. ``kvscatter.torch`` imports it if PyTorch has distributed tensors.
A write only moves rows of one sample along the sequence. A cache that is replicated, or sharded over any
dimension except the sequence, is therefore written on each rank without communication:

========================  =======================  ===============================
the cache, per mesh axis  the update               write_indices and lengths
========================  =======================  ===============================
``Replicate()``           ``Replicate()``          ``Replicate()``
``Shard(batch)``          ``Shard(batch)``         ``Shard(0)``, as they follow the batch
``Shard(other)``          ``Shard(other)``         ``Replicate()``
``Shard(sequence)``       not supported            not supported
``Partial()``             not supported            not supported
========================  =======================  ===============================

If an update or indices are replicated where they should be sharded, each rank cuts out its own part. Indices
that are not distributed are taken as replicated: all ranks must have the same ones. A
placement that would need communication raises an error that names the required placements. The caller can
then redistribute the tensor. There are no rules for gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo

from kvscatter import errors
from kvscatter._native import resolve_axis

__all__: list[str] = []


def _strategy(schema: OpSchema) -> OpStrategy:
    """Returns the only strategy that writes without communication, or raises an error.

    PyTorch's `register_sharding` is not enough. It chooses between placements by an estimate of costs, which
    may cut or gather the cache. It also has no placement for a dimension that is shorter than the mesh.
    """
    given: dict[str, Any] = dict(zip(_NAMES, schema.args_schema, strict=False))
    cache = _spec(given["past_cache"])
    sequence = resolve_axis(given.get("axis", -2), cache.ndim)
    _check_cache(cache.placements, sequence)
    wanted = {
        "past_cache": cache.placements,
        "update": cache.placements,
        "write_indices": _following_batch(cache.placements),
        "lengths": _following_batch(cache.placements),
    }
    inputs, costs = [], []
    for argument, value in given.items():
        if isinstance(value, OpStrategy):
            spec = _spec(value)
            _check_local(argument, spec, cache, wanted[argument])
            inputs.append(DTensorSpec(cache.mesh, wanted[argument], spec.tensor_meta))
            costs.append([0.0])
    returns = None
    if schema.op._schema.returns:
        is_list = schema.op == torch.ops.kvscatter.skips.default
        returns = DTensorSpec(cache.mesh, wanted["write_indices"] if is_list else cache.placements)
    return OpStrategy([OpSpec(returns, inputs, costs)])


_NAMES = ("past_cache", "update", "write_indices", "axis", "mode", "lengths")


def _spec(strategy: OpStrategy) -> DTensorSpec:
    return strategy.strategies[0].output_spec


def _following_batch(cache: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return tuple(Shard(0) if placement == Shard(0) else Replicate() for placement in cache)


def _check_cache(placements: tuple[Placement, ...], sequence: int) -> None:
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            problem = "a sum that is not reduced yet: reduce it first"
        elif placement == Shard(sequence):
            problem = (
                "sharded over the sequence, so a write would go to only one shard: shard another dimension"
            )
        elif type(placement) in {Replicate, Shard}:
            continue
        else:
            problem = "placed in a way that this rule does not know"
        message = f"the cache is {placement} on mesh axis {axis}, {problem}"
        raise errors.OptionError(message, "cache_placement", "past_cache")


def _check_local(
    argument: str, given: DTensorSpec, cache: DTensorSpec, wanted: tuple[Placement, ...]
) -> None:
    """Checks that ``given`` can become ``wanted`` without communication, because it is equal, or because it
    is replicated and can be cut."""
    if given.mesh != cache.mesh:
        message = f"{argument} is on {given.mesh}, the cache on {cache.mesh}: both must be on one mesh"
        raise errors.OptionError(message, "mesh", argument)
    for have, want in zip(given.placements, wanted, strict=True):
        if have != want and not have.is_replicate():
            message = (
                f"{argument} is {given.placements} and the cache {cache.placements}: a write would have to "
                f"communicate; redistribute {argument} to {wanted} first"
            )
            raise errors.OptionError(message, "placement", argument)


def replicated(values: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Returns values that every rank has as a distributed tensor, without communication."""
    assert isinstance(cache, DTensor), "only a distributed cache has a mesh"
    mesh = cache.device_mesh
    everywhere = (Replicate(),) * mesh.ndim
    if torch.compiler.is_compiling():
        return DTensor.from_local(values, mesh, everywhere, run_check=False)
    # `from_local` also records a derivative, which integers do not have, and takes longer than the write.
    whole = TensorMeta(values.shape, values.stride(), values.dtype)
    return DTensor(values.detach(), DTensorSpec(mesh, everywhere, whole), requires_grad=False)


def _register() -> None:
    hashed_from = _NAMES.index("axis")  # the rule also depends on the arguments from here on
    ops = torch.ops.kvscatter
    for op in (ops.tensor_scatter.default, ops.tensor_scatter_.default, ops.skips.default):
        propagator = DTensor._op_dispatcher.sharding_propagator
        propagator.register_op_strategy(op, _strategy, RuntimeSchemaInfo(hashed_from))


_register()
