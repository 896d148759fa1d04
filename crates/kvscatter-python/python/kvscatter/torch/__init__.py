"""kvscatter for PyTorch: operators, ONNX export, a cache for transformers, and rules for distributed
tensors.

Importing this package registers ``torch.ops.kvscatter.tensor_scatter``, ``tensor_scatter_`` and ``attention``. If
PyTorch has distributed tensors, it also registers the sharding rules of writes. `tensor_scatter`,
`tensor_scatter_` and `attention` in this module are these operators with the arguments of
``kvscatter.tensor_scatter`` and ``kvscatter.attention``. Unlike those functions, they are visible to
``torch.compile`` and ``torch.export``. ``kvscatter.torch.onnx`` exports them. `KvCache` needs transformers, so
it is imported at its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

try:
    import torch
    from torch.fx.node import has_side_effect
    from torch.overrides import handle_torch_function, has_torch_function
except ImportError as missing:
    raise ImportError("kvscatter.torch needs PyTorch: pip install kvscatter[torch]") from missing

from kvscatter import _integers, errors
from kvscatter._typing import OutOfRange
from kvscatter.torch import _derivatives as _derivatives  # registers their derivatives
from kvscatter.torch import _ops as _ops  # registers the operators
from kvscatter.torch._attention import attention as attention
from kvscatter.torch._positions import tensor_of

if torch.distributed.is_available():
    from kvscatter.torch import distributed as distributed  # registers their sharding rules

if TYPE_CHECKING:
    from kvscatter.torch.cache import KvCache as KvCache
    from kvscatter.torch.cache import KvLayer as KvLayer
    from kvscatter.torch.cache import KvRingLayer as KvRingLayer

# Without `KvCache`, because `import *` would then need transformers.
__all__ = ["attention", "tensor_scatter", "tensor_scatter_"]

_LAZY = ["KvCache", "KvLayer", "KvRingLayer"]

_AfterUpdate: TypeAlias = tuple[torch.Tensor | None, int, _ops.Mode, torch.Tensor | None]

_overridden: Any = handle_torch_function
"""Calls the replacement of a function that a tracer or a subclass of tensors has. It is `Any`, because its stub cannot
return the types of overloads."""


@overload
def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
    out_of_range: Literal["error"] = "error",
) -> torch.Tensor: ...
@overload
def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
    out_of_range: Literal["skip"],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
    out_of_range: OutOfRange = "error",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """ONNX TensorScatter-24 in functional form. Returns a new, dense copy of ``past_cache`` that contains
    ``update``.

    ``past_cache`` is ``[batch, .., capacity, ..]``, with the capacity at ``axis``. ``update`` has the same
    dimensions, except for the one at ``axis``. ``write_indices`` and ``lengths`` are integers ``[batch]``, as
    a tensor or a sequence. ``write_indices`` are the slots of each sample's first row and default to zeros.
    ``lengths`` count the rows of each sample that are written and default to all rows. In mode
    ``"circular"``, slots are taken modulo the capacity. With ``out_of_range="skip"``, samples that do not fit
    stay unchanged, and the function returns the copy and their number, as a tensor. ``lengths`` and
    ``out_of_range`` are kvscatter extensions; not part of the specification.

    The function is differentiable in ``past_cache`` and ``update``. It raises the same errors as
    ``kvscatter.tensor_scatter``.
    """
    tensors = past_cache, update, write_indices, lengths
    if has_torch_function(tensors):
        result: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = _overridden(
            tensor_scatter,
            tensors,
            *tensors[:3],
            axis=axis,
            mode=mode,
            lengths=lengths,
            out_of_range=out_of_range,
        )
        return result
    rest, skipped = _converted(past_cache, update, write_indices, axis, mode, lengths, out_of_range)
    present: torch.Tensor
    if _derivatives.is_traced_forward_mode():
        present = _derivatives.composed(past_cache, update, *rest)
    else:
        present = torch.ops.kvscatter.tensor_scatter(past_cache, update, *rest)
    return present if skipped is None else (present, skipped)


@overload
def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
    out_of_range: Literal["error"] = "error",
) -> None: ...
@overload
def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
    out_of_range: Literal["skip"],
) -> torch.Tensor: ...
def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
    out_of_range: OutOfRange = "error",
) -> torch.Tensor | None:
    """ONNX TensorScatter-24 in place. Writes ``update`` into ``cache``, strided or dense, and returns
    nothing, or with ``out_of_range="skip"`` the number of samples that were skipped, as a tensor.

    See `tensor_scatter` for the arguments. The function raises the same errors as
    ``kvscatter.tensor_scatter_``, and after an error nothing has been written. If gradients are recorded for
    ``cache`` or ``update``, the write has the gradients and the cost of `tensor_scatter`. Outside of
    inference mode, a cache that was made in inference mode is refused. In compiled functions PyTorch refuses it, after
    the write.
    """
    tensors = cache, update, write_indices, lengths
    if has_torch_function(tensors):
        result: torch.Tensor | None = _overridden(
            tensor_scatter_,
            tensors,
            *tensors[:3],
            axis=axis,
            mode=mode,
            lengths=lengths,
            out_of_range=out_of_range,
        )
        return result
    rest, skipped = _converted(cache, update, write_indices, axis, mode, lengths, out_of_range)
    _derivatives.check_not_captured(cache)
    if _derivatives.is_traced_forward_mode():
        cache.copy_(_derivatives.composed(cache, update, *rest))
    else:
        torch.ops.kvscatter.tensor_scatter_(cache, update, *rest)
    return skipped


# Without this, a traced graph loses calls whose result nothing uses.
has_side_effect(tensor_scatter_)


def _converted(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None,
    axis: int,
    mode: _ops.Mode,
    lengths: torch.Tensor | Sequence[int] | None,
    out_of_range: OutOfRange,
) -> tuple[_AfterUpdate, torch.Tensor | None]:
    """Returns the operators' arguments after the update, and the number of skipped samples, or None if these are an
    error."""
    axis = _integers.within("axis", axis, -(2**63), 2**63 - 1)
    starts = _positions(write_indices, "write_indices", cache)
    rows = _positions(lengths, "lengths", cache)
    is_skipping = {"error": False, "skip": True}.get(out_of_range)
    if is_skipping is None:
        message = f'out_of_range = "{out_of_range}": must be error or skip'
        raise errors.OptionError(message, "choice", "out_of_range", value=out_of_range)
    if not is_skipping:
        return (starts, axis, mode, rows), None
    skips = torch.ops.kvscatter.skips(cache.detach(), update.detach(), starts, axis, mode, rows)
    # A sample that is skipped writes no row.
    if starts is None:
        starts = torch.zeros_like(skips, dtype=torch.int64)
    if rows is None:
        rows = torch.full_like(starts, update.shape[axis], dtype=torch.int64)
    return (starts.where(~skips, 0), axis, mode, rows.where(~skips, 0)), skips.sum()


def _positions(
    values: torch.Tensor | Sequence[int] | None, argument: str, cache: torch.Tensor
) -> torch.Tensor | None:
    """Converts a sequence to the tensor that the operators take, on the cache's device. For a distributed cache, the
    values are those of every rank."""
    values = tensor_of(values, argument, cache)
    if _derivatives.is_distributed(cache) and values is not None and not _derivatives.is_distributed(values):
        from kvscatter.torch.distributed import replicated

        return replicated(values, cache)
    return values


if not TYPE_CHECKING:  # with this function, a type checker would accept every attribute of the module

    def __getattr__(name):
        if name in _LAZY:
            from kvscatter.torch import cache

            return getattr(cache, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return [*__all__, *(_LAZY if find_spec("transformers") else [])]
