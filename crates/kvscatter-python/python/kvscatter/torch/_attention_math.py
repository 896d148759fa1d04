"""Attention as a composition of PyTorch's operators, which has all of their derivatives.

It computes what the compiled module computes, in float32 or float64, and stores the scores of all slots. Slots that
no query sees are replaced by zeros before they are multiplied, so they have no influence and a gradient of 0, also if
they contain NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad


class ReadArguments(NamedTuple):
    """The arguments of every operator that reads. PyTorch leaves out trailing ones that have their defaults."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor | None = None
    starts: torch.Tensor | None = None
    causal: bool = True
    window: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    mask: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    mode: str = "linear"
    layout: str = "bhsd"
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    block_tables: torch.Tensor | None = None
    threads: int | None = None

    @property
    def queries(self) -> int:
        """The number of queries of a head."""
        return self.q.shape[_rows(self.layout)]

    @property
    def slots(self) -> int:
        """The number of slots of a sample."""
        rows = self.k.shape[_rows(self.layout)]
        return rows if self.block_tables is None else rows * self.block_tables.shape[1]


def _rows(layout: str) -> int:
    return 2 if layout == "bhsd" else 1


def by_head(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a view ``[batch, heads, rows, size]``. Applied to such a view, it returns one in the layout."""
    return tensor if layout == "bhsd" else tensor.transpose(1, 2)


def visibility(call: ReadArguments) -> torch.Tensor:
    """Returns which slots each query sees without the mask, ``[batch, queries, slots]``. The values have been
    checked."""
    capacity, queries = call.slots, call.queries
    slots = torch.arange(capacity)
    tokens = torch.tensor([capacity]) if call.lengths is None else call.lengths.to(torch.int64)
    tokens = tokens.expand(call.q.shape[0])[:, None, None]
    query = tokens - queries + torch.arange(queries)[:, None]
    position = slots
    if call.mode == "circular":  # the last position that is in the slot, or a negative number
        position = tokens - 1 - (tokens - 1 - slots) % max(capacity, 1)
    seen = (position >= 0) & (position < tokens)
    if call.causal:
        seen = seen & (position <= query)
    if call.window is not None:
        seen = seen & (position > query - min(call.window, 1 << 62))  # a larger window could overflow
    if call.starts is not None:
        seen = seen & (position >= call.starts.to(torch.int64)[:, None, None])
    return seen.expand(-1, queries, -1).contiguous()


def composed(call: ReadArguments, visible: torch.Tensor) -> torch.Tensor:
    """Computes attention over the slots of `visibility`, and hides those that the mask hides."""
    wide = torch.float64 if call.q.dtype is torch.float64 else torch.float32
    query = by_head(call.q, call.layout).to(wide)
    key, value = (
        _dequantized(call, by_head(cache, call.layout).to(wide), scales)
        for cache, scales in ((call.k, call.k_scale), (call.v, call.v_scale))
    )
    batch, heads, queries, size = query.shape
    kv_heads, slots = key.shape[1], key.shape[2]
    group = heads // kv_heads
    seen, bias = _masked(call.mask, visible[:, None])

    # Rows and slots without influence become zeros, because the gradient of a hidden score is 0, and 0 * NaN is NaN.
    sees = seen.any(-1, keepdim=True)
    used = seen.any(-2)
    if used.shape[1] != 1:
        used = used.unflatten(1, (kv_heads, group)).any(2)
    query = torch.where(sees, query, 0.0)
    key, value = (torch.where(used[..., None], cache, 0.0) for cache in (key, value))

    scale = call.scale
    if scale is None:
        scale = size**-0.5 if size != 0 else 1.0
    rows = (query * scale).reshape(batch, kv_heads, group * queries, size)
    scores = (rows @ key.mT).reshape(batch, heads, queries, slots)
    if call.softcap != 0.0:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if bias is not None:
        absorbs = bias <= torch.finfo(bias.dtype).min
        scores = torch.where(absorbs, 0.0, scores) + bias.to(wide)
    scores = torch.where(seen, scores, -torch.inf)
    # The last column is the sink. In a row that sees nothing, it takes all of the weights.
    sink = scores.new_tensor(-torch.inf) if call.sink is None else call.sink.to(wide)[:, None, None]
    sink = torch.where(sees, sink, 0.0).expand(batch, heads, queries, 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    mixed = weights.reshape(batch, kv_heads, group * queries, slots) @ value
    output = mixed.reshape(batch, heads, queries, value.shape[-1]).to(call.q.dtype)
    return by_head(output, call.layout)


def _dequantized(call: ReadArguments, cache: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Returns keys or values ``[batch, heads, slots, size]`` that are multiplied with their scales."""
    if scales is not None:
        scales = scales.to(cache.dtype)
        cache = cache * (scales[..., None] if scales.dim() == 3 else scales[:, None])
    return cache if call.block_tables is None else gathered(cache, call.block_tables)


def gathered(blocks: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Returns the blocks of each sample, ``[batch, heads, slots, size]``. Entries that are not a block give any
    block."""
    count, heads, rows, size = blocks.shape
    if count == 0:  # no query sees a slot
        blocks, count = blocks.new_zeros(1, heads, rows, size), 1
    index = tables.to(torch.int64).clamp(0, count - 1)
    slots = tables.shape[1] * rows
    return blocks[index].transpose(1, 2).reshape(tables.shape[0], heads, slots, size)


def _masked(mask: torch.Tensor | None, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns which slots are seen with the mask, and what it adds to their scores."""
    if mask is None:
        return seen, None
    missing = seen.shape[-1] - mask.shape[-1]
    if mask.dtype is torch.bool:
        return seen & pad(mask, (0, missing), value=False), None
    mask = pad(mask, (0, missing), value=-torch.inf)
    # The lowest number hides a slot, unless no slot has a higher one. It then replaces the score.
    above = seen & ~(mask <= torch.finfo(mask.dtype).min)
    seen = torch.where(above.any(-1, keepdim=True), above, seen & (mask != -torch.inf))
    return seen, torch.where(seen, mask, 0.0)


def tensors(call: ReadArguments) -> dict[str, Any]:
    """Returns the tensors among the arguments by name."""
    return {name: value for name, value in call._asdict().items() if isinstance(value, torch.Tensor)}
