"""kvscatter for PyTorch: operators, ONNX export, a cache for transformers, and rules for distributed
tensors.

Importing this package registers ``torch.ops.kvscatter.tensor_scatter`` and ``tensor_scatter_``. If PyTorch
has distributed tensors, it also registers their sharding rules. `tensor_scatter` and `tensor_scatter_` in
this module are these operators with the arguments of ``kvscatter.tensor_scatter``. Unlike that function,
they are visible to ``torch.compile`` and ``torch.export``. ``kvscatter.torch.onnx`` exports them. `KvCache`
needs transformers, so it is imported at its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

try:
    import torch
except ImportError as missing:
    raise ImportError("kvscatter.torch needs PyTorch: pip install kvscatter[torch]") from missing

from kvscatter import _integers, errors
from kvscatter.torch import _derivatives as _derivatives  # registers their derivatives
from kvscatter.torch import _ops as _ops  # registers the operators

if torch.distributed.is_available():
    from kvscatter.torch import distributed as distributed  # registers their sharding rules

if TYPE_CHECKING:
    from kvscatter.torch.cache import KvCache as KvCache
    from kvscatter.torch.cache import KvLayer as KvLayer
    from kvscatter.torch.cache import KvRingLayer as KvRingLayer

# Without `KvCache`, because `import *` would then need transformers.
__all__ = ["tensor_scatter", "tensor_scatter_"]

_LAZY = ["KvCache", "KvLayer", "KvRingLayer"]


def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
) -> torch.Tensor:
    """ONNX TensorScatter-24 in functional form. Returns a new, dense copy of ``past_cache`` that contains
    ``update``.

    ``past_cache`` is ``[batch, .., capacity, ..]``, with the capacity at ``axis``. ``update`` has the same
    dimensions, except for the one at ``axis``. ``write_indices`` and ``lengths`` are integers ``[batch]``, as
    a tensor or a sequence. ``write_indices`` are the slots of each sample's first row and default to zeros.
    ``lengths`` count the rows of each sample that are written and default to all rows. ``lengths`` is a
    kvscatter extension; not part of the specification. In mode ``"circular"``, slots are taken modulo the
    capacity.

    The function is differentiable in ``past_cache`` and ``update``. It raises the same errors as
    ``kvscatter.tensor_scatter``.
    """
    axis = _integers.within("axis", axis, -(2**63), 2**63 - 1)
    starts = _positions(write_indices, "write_indices", past_cache)
    rows = _positions(lengths, "lengths", past_cache)
    if _derivatives.is_traced_forward_mode():
        return _derivatives.composed(past_cache, update, starts, axis, mode, rows)
    present: torch.Tensor = torch.ops.kvscatter.tensor_scatter(past_cache, update, starts, axis, mode, rows)
    return present


def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
) -> None:
    """ONNX TensorScatter-24 in place. Writes ``update`` into ``cache``, strided or dense, and returns
    nothing.

    See `tensor_scatter` for the arguments. The function raises the same errors as
    ``kvscatter.tensor_scatter_``, and after an error nothing has been written. If gradients are recorded for
    ``cache`` or ``update``, the write has the gradients and the cost of `tensor_scatter`.
    """
    axis = _integers.within("axis", axis, -(2**63), 2**63 - 1)
    starts = _positions(write_indices, "write_indices", cache)
    rows = _positions(lengths, "lengths", cache)
    _derivatives.check_not_captured(cache)
    if _derivatives.is_traced_forward_mode():
        cache.copy_(_derivatives.composed(cache, update, starts, axis, mode, rows))
        return
    torch.ops.kvscatter.tensor_scatter_(cache, update, starts, axis, mode, rows)


def _positions(
    values: torch.Tensor | Sequence[int] | None, argument: str, cache: torch.Tensor
) -> torch.Tensor | None:
    """Converts a sequence to the tensor that the operators take, on the cache's device."""
    if values is None or isinstance(values, torch.Tensor):
        return values
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        message = f"{argument} is of type {type(values).__name__}: must be a tensor or a sequence of integers"
        raise errors.ElementTypeError(message, "not_integers", argument)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer, torch.SymInt)):
            message = f"{argument} holds {type(value).__name__}: must hold integers"
            raise errors.ElementTypeError(message, "not_integers", argument)
    return torch.tensor(values, dtype=torch.int64, device=cache.device)


if not TYPE_CHECKING:  # with this function, a type checker would accept every attribute of the module

    def __getattr__(name):
        if name in _LAZY:
            from kvscatter.torch import cache

            return getattr(cache, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        lazy = _LAZY if find_spec("transformers") else []
        return sorted([*globals(), *lazy])
