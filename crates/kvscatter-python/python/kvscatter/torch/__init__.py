"""The write for PyTorch: operators, ONNX export, a cache for transformers, rules for distributed tensors.

Importing this package registers ``torch.ops.kvscatter.tensor_scatter`` and ``tensor_scatter_`` and, where PyTorch has
distributed tensors, their sharding rules. `tensor_scatter` and `tensor_scatter_` here are these operators with the
arguments of ``kvscatter.tensor_scatter``; unlike that function they are seen by ``torch.compile`` and
``torch.export``. ``kvscatter.torch.onnx`` exports them; `KvCache` is imported when it is first asked for, since it
needs transformers.
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

__all__ = ["tensor_scatter", "tensor_scatter_"]  # and what needs transformers, which `import *` should not


def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: _ops.Mode = "linear",
    lengths: torch.Tensor | Sequence[int] | None = None,
) -> torch.Tensor:
    """ONNX TensorScatter-24, functional: a new, dense tensor that is ``past_cache`` with ``update`` written into it.

    ``past_cache`` is ``[batch, .., capacity, ..]``, with the capacity at ``axis``; ``update`` has the same dimensions
    but for that one. ``write_indices`` and ``lengths`` are integers ``[batch]``, a tensor or a sequence: the slot of
    each sample's first row (zeros if None), and how many of its rows are real (all if None; not a word of ONNX's). In
    mode ``"circular"`` slots are taken modulo the capacity.

    Differentiable in ``past_cache`` and ``update``. Raises what ``kvscatter.tensor_scatter`` raises.
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
    """ONNX TensorScatter-24 in place: writes ``update`` into ``cache``, strided or dense, and returns nothing.

    The arguments are `tensor_scatter`'s. Raises what ``kvscatter.tensor_scatter_`` raises, and then nothing has been
    written. Where gradients are recorded for ``cache`` or ``update``, they are those of `tensor_scatter`, and so is
    the cost.
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
    """A sequence as the tensor that the operators take, beside the cache."""
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


if not TYPE_CHECKING:  # to a type checker, a module with this function has an attribute of every name

    def __getattr__(name):
        if name in {"KvCache", "KvLayer"}:
            from kvscatter.torch import cache

            return getattr(cache, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        lazy = ["KvCache", "KvLayer"] if find_spec("transformers") else []
        return sorted([*globals(), *lazy])
