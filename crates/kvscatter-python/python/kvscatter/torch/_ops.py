"""``torch.ops.kvscatter.tensor_scatter`` and ``tensor_scatter_``: the write as PyTorch operators.

These are opaque to ``torch.compile`` and ``torch.export``. They have fake kernels, so they trace with static
and with symbolic shapes. The kernels pass memory to the compiled module, which implements the write.

``kvscatter::slots`` is the part of a write that has no derivative. It checks the call and returns the slot
of each row. `_derivatives` composes the rest of PyTorch's own operators. ``kvscatter::skips`` returns the
samples that do not fit.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch.autograd.forward_ad import (
    _set_fwd_grad_enabled,
)  # kernels run without forward mode, so they cannot ask for tangents

import kvscatter
from kvscatter import Plan, errors
from kvscatter._native import resolve_axis
from kvscatter._typing import OutOfRange

Mode = Literal["linear", "circular"]


class WriteArguments(NamedTuple):
    """The arguments of every operator. PyTorch leaves out trailing ones that have their defaults."""

    cache: torch.Tensor
    update: torch.Tensor
    write_indices: torch.Tensor | None = None
    axis: int = -2
    mode: str = "linear"
    lengths: torch.Tensor | None = None


def _schema(result: str, *, cache: str = "Tensor past_cache", mode: str = "mode") -> str:
    return (
        f"({cache}, Tensor update, Tensor? write_indices=None, int axis=-2, str {mode}='linear', "
        f"Tensor? lengths=None) -> {result}"
    )


@torch.library.custom_op("kvscatter::tensor_scatter", mutates_args=(), schema=_schema("Tensor"))
def tensor_scatter(*arguments: Any) -> torch.Tensor:
    """The operator that ``kvscatter.torch.tensor_scatter`` calls and documents."""
    call = WriteArguments(*arguments)
    past, rows = _past(call.cache), _memory(call.update, "update")
    present = torch.empty(
        past.shape, dtype=past.dtype
    )  # the call below rejects tensors on a device, so this memory is not used for them
    with _set_fwd_grad_enabled(False):
        kvscatter.tensor_scatter(past, rows, call.write_indices, out=present, **_options(call))
    return present


# PyTorch cannot functionalize an in-place operator with an argument `mode`.
@torch.library.custom_op(
    "kvscatter::tensor_scatter_",
    mutates_args=("cache",),
    schema=_schema("()", cache="Tensor(a!) cache", mode="cache_mode"),
)
def tensor_scatter_(*arguments: Any) -> None:
    """The operator that ``kvscatter.torch.tensor_scatter_`` calls and documents."""
    call = WriteArguments(*arguments)
    memory, rows = _memory(call.cache, "cache"), _memory(call.update, "update")
    if call.cache.is_inference() and not torch.is_inference_mode_enabled():
        message = "cache was made in inference mode: outside of it, only a clone can be written in place"
        raise errors.ArrayError(message, "tensor", "cache")
    with _set_fwd_grad_enabled(False):
        kvscatter.tensor_scatter_(memory, rows, call.write_indices, **_options(call))


@torch.library.custom_op("kvscatter::slots", mutates_args=(), schema=_schema("Tensor"))
def slots(*arguments: Any) -> torch.Tensor:
    """Checks the arguments like `tensor_scatter` and returns the slot of each row of the update, ``[batch,
    rows]``.

    The slots of one sample differ from each other, including those of rows that ``lengths`` leaves out.
    """
    call = WriteArguments(*arguments)
    _plan(call, "error")
    rows, capacity = call.update.shape[call.axis], call.cache.shape[call.axis]
    starts = call.write_indices
    first = torch.zeros(1, dtype=torch.int64) if starts is None else starts.to(torch.int64)
    # In linear mode, only rows that `lengths` leaves out are past the end. A cache without slots has no
    # rows.
    slots = max(capacity, 1)
    first = first % slots  # circular indices can be so large that adding to them would overflow
    return (first[:, None] + torch.arange(rows)).expand(call.cache.shape[0], rows) % slots


@torch.library.custom_op("kvscatter::skips", mutates_args=(), schema=_schema("Tensor"))
def skips(*arguments: Any) -> torch.Tensor:
    """Checks the arguments like `tensor_scatter` with ``out_of_range="skip"``. Returns True for each sample that
    does not fit, ``[batch]``."""
    call = WriteArguments(*arguments)
    skipped = torch.zeros(call.cache.shape[0], dtype=torch.bool)
    skipped[_plan(call, "skip").skipped_samples] = True
    return skipped


def _plan(call: WriteArguments, out_of_range: OutOfRange) -> Plan:
    """Checks a call without writing."""
    past, new = _past(call.cache), _memory(call.update, "update")
    with _set_fwd_grad_enabled(False):
        return kvscatter.plan(past, new, call.write_indices, out_of_range=out_of_range, **_options(call))


def _options(call: WriteArguments) -> dict[str, Any]:
    return {"axis": call.axis, "mode": call.mode, "lengths": call.lengths}


def _past(past_cache: torch.Tensor) -> torch.Tensor:
    """Returns a cache that is only read. It may be broadcast, as gradients often are."""
    past = _memory(past_cache, "past_cache")
    return past.contiguous() if 0 in past.stride() else past


def _memory(tensor: torch.Tensor, argument: str) -> torch.Tensor:
    """Returns ``tensor`` detached from autograd, which `_derivatives` handles. Raises an error for tensors
    that are not strided."""
    if tensor.layout is not torch.strided:
        message = f"{argument} is {tensor.layout}: only strided tensors can be read and written"
        raise errors.ArrayError(message, "layout", argument)
    return tensor.detach() if tensor.requires_grad else tensor


# ── shapes, known and symbolic ──────────────────────────────────────────────────────────────────────────────────


@tensor_scatter.register_fake
def _(*arguments: Any) -> torch.Tensor:
    past, *_ = _checked(arguments)
    return torch.empty(past.shape, dtype=past.dtype, device=past.device)


@tensor_scatter_.register_fake
def _(*arguments: Any) -> None:
    _checked(arguments)


@slots.register_fake
def _(*arguments: Any) -> torch.Tensor:
    call = _checked(arguments)
    shape = call.cache.shape[0], call.update.shape[call.axis]
    return torch.empty(shape, dtype=torch.int64, device=call.cache.device)


@skips.register_fake
def _(*arguments: Any) -> torch.Tensor:
    past, *_ = _checked(arguments)
    return torch.empty(past.shape[:1], dtype=torch.bool, device=past.device)


def _checked(arguments: tuple[Any, ...]) -> WriteArguments:
    """Checks everything that does not depend on values. Symbolic sizes are checked when the traced program
    knows them."""
    call = WriteArguments(*arguments)
    past_cache, update, write_indices, axis, mode, lengths = call
    for argument, tensor in (("update", update), ("write_indices", write_indices), ("lengths", lengths)):
        # PyTorch calls this function instead of the kernel if any of the tensors has no memory.
        if tensor is not None and tensor.device != past_cache.device:
            message = (
                f"{argument} is on {tensor.device}, but the cache is on {past_cache.device}: "
                "all must be on the same device"
            )
            raise errors.DeviceError(message, "device", argument, device=str(tensor.device))
    if past_cache.dtype != update.dtype:
        message = (
            f"update is {update.dtype}, but the cache is {past_cache.dtype}: both must have the same type"
        )
        raise errors.ElementTypeError(message, "element_type_mismatch", "update")
    shapes = past_cache.shape, update.shape
    # Symbolic sizes are replaced by 1 here and compared with the other tensor's sizes below.
    symbols = {dimension for shape in shapes for dimension, size in enumerate(shape) if is_symbol(size)}
    known = [
        [1 if dimension in symbols else size for dimension, size in enumerate(shape)] for shape in shapes
    ]
    # The rules about shapes do not depend on the size of an element.
    write = kvscatter.prepare(known[0], known[1], axis=axis, mode=cast(Mode, mode), dtype=np.uint8)
    sequence = resolve_axis(axis, past_cache.dim())
    for dimension in symbols:
        capacity, rows = past_cache.shape[dimension], update.shape[dimension]
        fits = rows <= capacity if dimension == sequence else rows == capacity
        torch._check(fits, lambda: f"update {tuple(update.shape)} does not fit {tuple(past_cache.shape)}")
    counts = [
        value_count(argument, values, past_cache.shape[0])
        for argument, values in (("write_indices", write_indices), ("lengths", lengths))
    ]
    if 0 not in symbols:
        write.plan(*(None if count is None else [0] * count for count in counts))
    return call


def value_count(argument: str, values: torch.Tensor | None, batch: int) -> int | None:
    """Returns the number of positions or lengths. It is ``batch`` if one of the two numbers is symbolic."""
    if values is None:
        return None
    if values.dim() != 1:
        message = f"{argument} has {values.dim()} dimensions, must have 1: one value per sample"
        raise errors.ShapeError(message, "rank", argument, rank=values.dim())
    if values.is_floating_point() or values.is_complex() or values.dtype is torch.bool:
        raise errors.ElementTypeError(
            f"{argument} holds {values.dtype}: must hold integers", "not_integers", argument
        )
    count = values.shape[0]
    if is_symbol(count) or is_symbol(batch):
        torch._check(count == batch, lambda: f"{argument} has length {count}, must have {batch}")
        return batch
    return count


def is_symbol(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt)


# ── views that hold other values than their memory ──────────────────────────────────────────────────────────────


def _resolve(cache: torch.Tensor, update: torch.Tensor, *rest: Any) -> None:
    """Resolves a lazy view of an update. Raises an error for a lazy view of a cache, whose memory would have
    to be rewritten."""
    if cache.is_conj() or cache.is_neg():
        message = (
            "cache is a conjugated or negated view of its memory: resolve_conj() or resolve_neg() it first"
        )
        raise errors.ArrayError(message, "tensor", "cache")
    torch.ops.kvscatter.tensor_scatter_.default(cache, update.resolve_conj().resolve_neg(), *rest)


_LIBRARY = torch.library.Library("kvscatter", "FRAGMENT")
"""Kept alive, because its registrations end with it."""

for _key in ("Conjugate", "Negative"):
    _LIBRARY.impl("tensor_scatter_", _resolve, _key)
