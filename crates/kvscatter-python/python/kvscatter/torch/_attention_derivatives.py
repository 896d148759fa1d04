"""Derivatives and batching of the read: reverse and forward mode, of any order, ``torch.func`` and ``torch.vmap``.

A recorded call becomes the composition of `_attention_math`. All other calls go to the operator's kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from kvscatter.torch import _attention_ops
from kvscatter.torch._attention_math import ReadArguments, composed, tensors
from kvscatter.torch._derivatives import is_recorded, value


def _functional(keyset: torch._C.DispatchKeySet, *arguments: Any) -> torch.Tensor:
    """Calls ``attention`` and records derivatives if they are needed."""
    call = ReadArguments(*arguments)
    if is_recorded(*(tensor for tensor in tensors(call).values() if tensor.is_floating_point())):
        return recorded(call)
    below = keyset & torch._C._after_autograd_keyset
    output: torch.Tensor = torch.ops.kvscatter.attention.default.redispatch(below, *arguments)
    return output


def recorded(call: ReadArguments) -> torch.Tensor:
    """Computes attention by operators that PyTorch can differentiate."""
    values: dict[str, Any] = {name: value(tensor) for name, tensor in tensors(call).items()}
    return composed(call, torch.ops.kvscatter.visible.default(*call._replace(**values)))


_LIBRARY = torch.library.Library("kvscatter", "FRAGMENT")
"""Kept alive, because its registrations end with it."""

for _key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
    _LIBRARY.impl("attention", _functional, _key, with_keyset=True)


# ── torch.vmap ──────────────────────────────────────────────────────────────────────────────────────────────────


def _batched(operator: Any) -> Any:
    """Returns the batching rule of an operator. It turns the items of vmap into more samples of the batch."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[torch.Tensor, int]:
        items = info.batch_size
        moved: list[Any] = [
            argument if dim is None or not isinstance(argument, torch.Tensor) else argument.movedim(dim, 0)
            for argument, dim in zip(arguments, in_dims, strict=True)
        ]
        call = ReadArguments(*moved)
        batched = {name for name, dim in zip(ReadArguments._fields, in_dims, strict=False) if dim is not None}
        if _differs_by_item(call, batched):
            outputs = [operator(*_item(call, batched, item)) for item in range(items)]
            return torch.stack(outputs), 0
        output = operator(*_folded(call, batched, items))
        return output.unflatten(0, (items, output.shape[0] // items)), 0

    return rule


def _differs_by_item(call: ReadArguments, batched: set[str]) -> bool:
    """Returns True if an argument that all samples share is not the same for all items."""
    has_channels = call.k_scale is not None and call.k_scale.dim() - ("k_scale" in batched) == 2
    return "sink" in batched or (has_channels and bool({"k_scale", "v_scale"} & batched))


def _item(call: ReadArguments, batched: set[str], item: int) -> ReadArguments:
    return call._replace(**{name: tensors(call)[name][item] for name in batched})


def _folded(call: ReadArguments, batched: set[str], items: int) -> ReadArguments:
    changed: dict[str, Any] = {}
    caches = {"k", "v", "k_scale", "v_scale"}
    is_shared = call.block_tables is not None and not caches & batched
    for name, tensor in tensors(call).items():
        is_by_channel = name in ("k_scale", "v_scale") and tensor.dim() == 2
        if name == "sink" or is_by_channel or (name in caches and is_shared):
            continue
        if name == "mask":
            changed[name] = _folded_mask(call, tensor, "mask" in batched, items)
            continue
        if name not in batched:
            tensor = tensor.expand(items, *tensor.shape)
        if name == "block_tables" and not is_shared:
            tensor = _moved_blocks(tensor, call.k.shape[1 if "k" in batched else 0])
        # The operator raises an error for an item without dimensions, because of its rank.
        changed[name] = tensor.flatten(0, 1) if tensor.dim() > 1 else tensor[:, None]
    return call._replace(**changed)


def _moved_blocks(tables: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the tables ``[items, batch, blocks]`` for blocks of which each item has its own. Entries that are not a
    block stay so."""
    first = torch.arange(tables.shape[0], device=tables.device) * count
    is_block = (tables >= 0) & (tables < count)
    return torch.where(is_block, tables + first.view(-1, *[1] * (tables.dim() - 1)), -1)


def _folded_mask(call: ReadArguments, mask: torch.Tensor, is_batched: bool, items: int) -> torch.Tensor:
    if not is_batched:
        mask = mask.expand(items, *mask.shape)
    missing = 5 - mask.dim()
    if not 0 <= missing < 4:
        return mask  # the operator raises an error
    mask = mask.reshape(items, *[1] * missing, *mask.shape[1:])
    if mask.shape[1] == 1:
        samples = call.q.shape[-4]
        mask = mask.expand(-1, samples, -1, -1, -1)
    return mask.flatten(0, 1)


_attention_ops.attention.register_vmap(_batched(torch.ops.kvscatter.attention.default))
_attention_ops.visible.register_vmap(_batched(torch.ops.kvscatter.visible.default))
