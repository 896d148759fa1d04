"""``torch.ops.kvscatter.tensor_scatter`` and ``tensor_scatter_``: the write as PyTorch operators.

Both are opaque to ``torch.compile`` and ``torch.export`` and have fake kernels, so they trace with static and with
symbolic shapes. What a write means is not decided here: the kernels hand memory to the compiled module.

Both have gradients. ``torch.vmap`` calls the functional one once per item and refuses the one in place: a cache has a
batch of its own, with positions of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch

import kvscatter
from kvscatter import Prepared, errors

Mode = Literal["linear", "circular"]


@torch.library.custom_op("kvscatter::tensor_scatter", mutates_args=())
def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The operator behind ``kvscatter.torch.tensor_scatter``, which says what it does."""
    past, rows = _memory(past_cache, "past_cache"), _memory(update, "update")
    if 0 in past.stride():  # broadcast, as gradients often are; what is only read may be
        past = past.contiguous()
    present = torch.empty(
        past.shape, dtype=past.dtype
    )  # what lies on a device is refused below, before it is used
    kvscatter.tensor_scatter(
        past, rows, write_indices, axis=axis, mode=cast(Mode, mode), lengths=lengths, out=present
    )
    return present


@torch.library.custom_op("kvscatter::tensor_scatter_", mutates_args=("cache",))
def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    axis: int = -2,
    cache_mode: str = "linear",
    lengths: torch.Tensor | None = None,
) -> None:
    """The operator behind ``kvscatter.torch.tensor_scatter_``, which says what it does.

    ``mode`` is ``cache_mode`` here: PyTorch cannot functionalize a write in place by an operator that has an argument
    ``mode``.
    """
    memory, rows = _memory(cache, "cache"), _memory(update, "update")
    kvscatter.tensor_scatter_(
        memory, rows, write_indices, axis=axis, mode=cast(Mode, cache_mode), lengths=lengths
    )


def _memory(tensor: torch.Tensor, argument: str) -> torch.Tensor:
    """``tensor`` as what DLPack can lend: strided and outside of autograd, which has been dealt with above."""
    if tensor.layout is not torch.strided:
        message = f"{argument} is {tensor.layout}: only strided tensors can be read and written"
        raise errors.ArrayError(message, "layout", argument)
    return tensor.detach() if tensor.requires_grad else tensor


# ── shapes, known and symbolic ──────────────────────────────────────────────────────────────────────────────────


@tensor_scatter.register_fake
def _(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    _check_shapes(past_cache, update, write_indices, axis, mode, lengths)
    return torch.empty(past_cache.shape, dtype=past_cache.dtype, device=past_cache.device)


@tensor_scatter_.register_fake
def _(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    axis: int = -2,
    cache_mode: str = "linear",
    lengths: torch.Tensor | None = None,
) -> None:
    _check_shapes(cache, update, write_indices, axis, cache_mode, lengths)


def sequence_dimension(axis: int, rank: int) -> int:
    """``axis`` counted from the front. Raises `errors.OptionError` if it is out of range or the batch."""
    _prepared((1,) * rank, (1,) * rank, axis)
    return axis % rank


def _prepared(past_cache: Sequence[int], update: Sequence[int], axis: int, mode: str = "linear") -> Prepared:
    """The compiled module's rules about shapes and attributes, which hold for elements of every size."""
    return kvscatter.prepare(
        tuple(past_cache), tuple(update), axis=axis, mode=cast(Mode, mode), dtype=np.uint8
    )


def _check_shapes(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None,
    axis: int,
    mode: str,
    lengths: torch.Tensor | None,
) -> None:
    """What can be known without values: sizes now, symbols when the traced program learns them."""
    if past_cache.dtype != update.dtype:
        message = f"update is {update.dtype}, but the cache is {past_cache.dtype}: both must have one type"
        raise errors.ElementTypeError(message, "element_type_mismatch", "update")
    shapes = past_cache.shape, update.shape
    # Each of these sizes is compared with the other tensor's below.
    symbols = {place for shape in shapes for place, size in enumerate(shape) if _is_symbol(size)}
    known = [[1 if place in symbols else size for place, size in enumerate(shape)] for shape in shapes]
    write = _prepared(known[0], known[1], axis, mode)
    for place in symbols:
        capacity, rows = past_cache.shape[place], update.shape[place]
        fits = rows <= capacity if place == axis % past_cache.dim() else rows == capacity
        torch._check(fits, lambda: f"update {tuple(update.shape)} does not fit {tuple(past_cache.shape)}")
    counts = [
        _count(argument, values, past_cache.shape[0])
        for argument, values in (("write_indices", write_indices), ("lengths", lengths))
    ]
    if 0 not in symbols:
        write.plan(*(None if count is None else [0] * count for count in counts))


def _count(argument: str, values: torch.Tensor | None, batch: int) -> int | None:
    """How many positions or lengths there are, which is ``batch`` where either is a symbol."""
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
    if _is_symbol(count) or _is_symbol(batch):
        torch._check(count == batch, lambda: f"{argument} has length {count}, must have {batch}")
        return batch
    return count


def _is_symbol(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt)


# ── gradients ───────────────────────────────────────────────────────────────────────────────────────────────────


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    past_cache, update, write_indices, axis, ctx.mode, lengths = inputs
    ctx.axis = axis % past_cache.dim()
    ctx.update_shape = update.shape
    ctx.save_for_backward(
        write_indices, lengths
    )  # which notices if somebody changes them before the backward pass


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """What was kept flows to the past, what was written to the update."""
    write_indices, lengths = ctx.saved_tensors
    past = update = None
    if ctx.needs_input_grad[0]:
        nothing = torch.zeros(ctx.update_shape, dtype=grad.dtype, device=grad.device)
        past = tensor_scatter(grad, nothing, write_indices, ctx.axis, ctx.mode, lengths)
    if ctx.needs_input_grad[1]:
        update = _gather(grad, ctx.update_shape, write_indices, ctx.axis, lengths)
    return past, update, None, None, None, None


def _gather(
    grad: torch.Tensor,
    shape: torch.Size,
    write_indices: torch.Tensor | None,
    axis: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """The rows of ``grad`` that an update of ``shape`` was written to; zero where it was not written."""
    batch, rows, capacity = shape[0], shape[axis], grad.shape[axis]
    offsets = torch.arange(rows, device=grad.device).expand(batch, rows)
    starts = 0 if write_indices is None else write_indices[:, None]
    # In linear mode only rows that `lengths` leaves out lie past the end, and they are masked below.
    slots = (starts + offsets) % max(capacity, 1)
    per_row = [batch] + [1] * (len(shape) - 1)
    per_row[axis] = rows
    gathered = grad.gather(axis, slots.view(per_row).expand(shape))
    if lengths is None:
        return gathered
    return gathered.masked_fill((offsets >= lengths[:, None]).view(per_row), 0)


tensor_scatter.register_autograd(_gradients, setup_context=_remember)


def _write(keyset: torch._C.DispatchKeySet, cache: torch.Tensor, update: torch.Tensor, *rest: Any) -> None:
    """A recorded write is the functional operator and a copy, so that the cache's history goes on with it.

    That costs what copying the cache costs, twice, and is what compiled graphs differentiate correctly. An exported
    program keeps the write in place: it comes back here when it runs.
    """
    recorded = torch.is_grad_enabled() and (cache.requires_grad or update.requires_grad)
    if recorded and not torch.compiler.is_exporting():
        cache.copy_(tensor_scatter(cache, update, *rest))
        return
    below = keyset & torch._C._after_autograd_keyset
    torch.ops.kvscatter.tensor_scatter_.default.redispatch(below, cache, update, *rest)


def _resolve(cache: torch.Tensor, update: torch.Tensor, *rest: Any) -> None:
    """Views that hold other values than their memory: an update is resolved, a cache would have to be rewritten."""
    if cache.is_conj() or cache.is_neg():
        message = (
            "cache is a conjugated or negated view of its memory: resolve_conj() or resolve_neg() it first"
        )
        raise errors.ArrayError(message, "tensor", "cache")
    torch.ops.kvscatter.tensor_scatter_.default(cache, update.resolve_conj().resolve_neg(), *rest)


_LIBRARY = torch.library.Library("kvscatter", "FRAGMENT")  # type: ignore[no-untyped-call]
"""Kept, since what a library registers ends when it does."""

for _key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
    _LIBRARY.impl("tensor_scatter_", _write, _key, with_keyset=True)  # type: ignore[no-untyped-call]
for _key in ("Conjugate", "Negative"):
    _LIBRARY.impl("tensor_scatter_", _resolve, _key)  # type: ignore[no-untyped-call]
