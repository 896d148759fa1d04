"""Derivatives and batching of the write: reverse and forward mode, of any order, ``torch.func`` and
``torch.vmap``.

A write is linear, and PyTorch's ``scatter`` has all of its derivatives. A recorded call becomes a
``scatter`` to the slots that ``kvscatter::slots`` returns, so this module defines no derivative. Such a call
costs a copy of the cache, like the functional operator. All other calls go to the operators' kernels.

``torch.library.register_autograd`` is not enough. It has no forward mode and drops tangents without an
error, and it fails under the transforms of ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from kvscatter import errors
from kvscatter.torch import _ops

_C: Any = torch._C
"""PyTorch's stubs lack the functions that report whether ``torch.func`` transforms a function."""


def _functional(
    keyset: torch._C.DispatchKeySet, past_cache: torch.Tensor, update: torch.Tensor, *rest: Any
) -> torch.Tensor:
    """Calls ``tensor_scatter`` and records derivatives if they are needed."""
    if not is_recorded(past_cache, update):
        below = keyset & torch._C._after_autograd_keyset
        present: torch.Tensor = torch.ops.kvscatter.tensor_scatter.default.redispatch(
            below, past_cache, update, *rest
        )
        return present
    if is_distributed(past_cache):
        apply: Callable[..., torch.Tensor] = _Distributed.apply  # untyped before PyTorch 2.15
        return apply(past_cache, update, *rest)
    return composed(past_cache, update, *rest)


def _in_place(keyset: torch._C.DispatchKeySet, cache: torch.Tensor, update: torch.Tensor, *rest: Any) -> None:
    """Calls ``tensor_scatter_``. If derivatives are needed, it copies the result of the functional write,
    which PyTorch records."""
    if is_recorded(cache, update):
        cache.copy_(torch.ops.kvscatter.tensor_scatter.default(cache, update, *rest))
        return
    below = keyset & torch._C._after_autograd_keyset
    torch.ops.kvscatter.tensor_scatter_.default.redispatch(below, cache, update, *rest)


def check_not_captured(cache: torch.Tensor) -> None:
    """Raises an error for an in-place write to a captured cache while ``torch.func`` transforms the function.

    A captured cache is used by the function but is not one of its arguments. The derivative would be lost.
    PyTorch raises such an error for in-place operators that return their argument, but it does not recognize
    operators that return nothing. This function therefore calls one of PyTorch's in-place operators on zero
    elements.
    """
    if _C._functorch.peek_interpreter_stack() is not None and cache.dim() > 0:
        cache.detach().narrow(0, 0, 0).zero_()


def is_recorded(*tensors: torch.Tensor) -> bool:
    """Returns True if a derivative of the write is needed.

    An exported program keeps its writes unchanged, because it is differentiated when it runs. The transforms
    of ``torch.func`` are part of the program, so they are recorded there too.
    """
    if may_have_tangents() and any(_unpacked(tensor).tangent is not None for tensor in tensors):
        return True
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return False
    return not torch.compiler.is_exporting() or _C._functorch.peek_interpreter_stack() is not None


def composed(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Composes the write of operators that PyTorch can differentiate."""
    slots = torch.ops.kvscatter.slots.default(
        value(past_cache), value(update), write_indices, axis, mode, lengths
    )
    axis %= past_cache.dim()
    batch, rows = slots.shape
    per_row = [1] * past_cache.dim()
    per_row[0], per_row[axis] = batch, rows
    index = slots.view(per_row).expand(update.shape)
    if lengths is not None:  # rows beyond the length are replaced by the current contents of their slots
        left_out = torch.arange(rows, device=slots.device) >= lengths[:, None]
        # `gather` would keep the cache for the backward pass, and an in-place write changes the cache.
        # Indexing does not.
        samples = torch.arange(batch, device=slots.device)[:, None]
        held = past_cache.movedim(axis, 1)[samples, slots].movedim(1, axis)
        update = torch.where(left_out.view(per_row), held, update)
    return past_cache.scatter(axis, index, update)


def value(tensor: torch.Tensor) -> torch.Tensor:
    """Returns ``tensor`` without its history and without a tangent."""
    return (_unpacked(tensor).primal if may_have_tangents() else tensor).detach()


def _unpacked(tensor: torch.Tensor) -> forward_ad.UnpackedDualTensor:
    # Level 0 is the only level that PyTorch has.
    unpacked: forward_ad.UnpackedDualTensor = forward_ad.unpack_dual(tensor, level=0)
    return unpacked


def may_have_tangents() -> bool:
    """Returns True if tensors may have tangents.

    This is checked first, because unpacking a tensor is slow and a traced graph would record it as an
    operation.
    """
    return forward_ad._current_level >= 0 or _C._functorch.peek_interpreter_stack() is not None


def is_traced_forward_mode() -> bool:
    """Returns True if the function that is being compiled differentiates in forward mode itself.

    When such a function runs, it opens PyTorch's level where the operators cannot see it. The operators must
    therefore not be part of the compiled function.
    """
    return torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_distributed(tensor: torch.Tensor) -> bool:
    """Returns True for a `DTensor`."""
    if type(tensor) is torch.Tensor or not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


class _Distributed(torch.autograd.Function):
    """A write of distributed tensors. It has no gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        present: torch.Tensor = torch.ops.kvscatter.tensor_scatter.default(*arguments)
        return present

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        message = (
            "past_cache is a distributed tensor: the write has no gradient there; differentiate local tensors"
        )
        raise errors.OptionError(message, "distributed_gradient", "past_cache")


# ── torch.vmap ──────────────────────────────────────────────────────────────────────────────────────────────────


def _batched(operator: Any) -> Any:
    """Returns the batching rule of a functional operator."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[torch.Tensor, int]:
        return _unfolded(info, operator(*_folded(info, in_dims, arguments))), 0

    return rule


_ops.tensor_scatter.register_vmap(_batched(torch.ops.kvscatter.tensor_scatter.default))
_ops.slots.register_vmap(_batched(torch.ops.kvscatter.slots.default))
_ops.skips.register_vmap(_batched(torch.ops.kvscatter.skips.default))


@_ops.tensor_scatter_.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[None, None]:
    if in_dims[0] is None:
        message = "cache is shared by the items of vmap: each item must have its own, as in vmap(.., in_dims=(0, ..))"
        raise errors.OptionError(message, "shared_cache", "cache")
    items = arguments[0].movedim(in_dims[0], 0)
    folded = _folded(info, in_dims, arguments)
    try:
        samples = items.view(-1, *items.shape[2:])
    except RuntimeError:  # the dimensions cannot be merged without a copy
        items.copy_(_unfolded(info, torch.ops.kvscatter.tensor_scatter.default(*folded)))
    else:
        torch.ops.kvscatter.tensor_scatter_.default(samples, *folded[1:])
    return None, None


def _folded(info: Any, in_dims: tuple[int | None, ...], arguments: tuple[Any, ...]) -> list[Any]:
    """Turns the items of vmap into more samples of the batch. Like samples, items are independent of each
    other."""
    return [
        _as_samples(argument, dim, info.batch_size) if isinstance(argument, torch.Tensor) else argument
        for argument, dim in zip(arguments, in_dims, strict=True)
    ]


def _as_samples(tensor: torch.Tensor, dim: int | None, items: int) -> torch.Tensor:
    if dim is None:
        tensor = tensor.expand(items, *tensor.shape)
    elif dim != 0:
        tensor = tensor.movedim(dim, 0)
    # The operator raises an error for an item without dimensions, because of its rank.
    return tensor.flatten(0, 1) if tensor.dim() > 1 else tensor[:, None]


def _unfolded(info: Any, samples: torch.Tensor) -> torch.Tensor:
    sizes = info.batch_size, samples.shape[0] // info.batch_size
    unfolded: torch.Tensor = samples.unflatten(0, sizes)
    return unfolded


_LIBRARY = torch.library.Library("kvscatter", "FRAGMENT")
"""Kept alive, because its registrations end with it."""

for _key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
    _LIBRARY.impl("tensor_scatter", _functional, _key, with_keyset=True)
    _LIBRARY.impl("tensor_scatter_", _in_place, _key, with_keyset=True)
