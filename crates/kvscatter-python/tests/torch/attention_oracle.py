"""Random calls of attention, and a second implementation of its rules: one row at a time, in float64."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch

HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Case:
    """A call, and the slots that each row of its result sees."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor | None
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self.layout: str = self.options["layout"]
        self.tables: torch.Tensor | None = self.options["block_tables"]
        self.batch, self.heads, self.queries, self.size = self.by_head(self.q).shape
        _, self.kv_heads, self.rows, self.value_size = self.by_head(self.v).shape
        self.slots = self.rows if self.tables is None else self.rows * self.tables.shape[1]

    def by_head(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.layout == "bhsd" else tensor.transpose(1, 2)

    def place(self, sample: int, slot: int) -> tuple[int, int]:
        """Returns the index of a slot in the first dimension of a cache, and the row there."""
        if self.tables is None:
            return sample, slot
        return int(self.tables[sample, slot // self.rows]), slot % self.rows

    def seen(self, sample: int, query: int) -> list[int]:
        """Returns the slots that a query sees without the mask."""
        options = self.options
        tokens = self.slots if self.lengths is None else int(self.lengths[sample])
        first = 0 if options["starts"] is None else int(options["starts"][sample])
        if options["mode"] == "circular":
            first = max(first, tokens - self.slots)
        position = tokens - self.queries + query
        last = min(tokens - 1, position) if options["causal"] else tokens - 1
        if options["window"] is not None:
            first = max(first, position - options["window"] + 1)
        return [position % self.slots for position in range(first, last + 1)]

    def masked(self, sample: int, head: int, query: int) -> dict[int, float]:
        """Returns the slots that a row sees, with the numbers that the mask adds."""
        seen, mask = self.seen(sample, query), self.options["mask"]
        if mask is None:
            return dict.fromkeys(seen, 0.0)
        wide = mask.expand(self.batch, self.heads, self.queries, mask.shape[-1])[sample, head, query]
        if mask.dtype is torch.bool:
            return {slot: 0.0 for slot in seen if slot < len(wide) and wide[slot]}
        added = {slot: float(wide[slot]) for slot in seen if slot < len(wide) and wide[slot] != -math.inf}
        lowest = torch.finfo(mask.dtype).min
        return {slot: number for slot, number in added.items() if number > lowest} or added

    def row(self, cache: torch.Tensor, scales: torch.Tensor | None, head: int, place: Any) -> torch.Tensor:
        outer, slot = place
        values = self.by_head(cache)[outer, head, slot].double()
        if scales is None:
            return values
        return values * (scales[head] if scales.dim() == 2 else scales[outer, head, slot]).double()

    def expected(self) -> torch.Tensor:
        options = self.options
        result = torch.zeros(self.batch, self.heads, self.queries, self.value_size, dtype=torch.float64)
        scale = self.size**-0.5 if options["scale"] is None else options["scale"]
        for sample in range(self.batch):
            for head in range(self.heads):
                shared = head // (self.heads // self.kv_heads)
                for query in range(self.queries):
                    added = self.masked(sample, head, query)
                    if not added:
                        continue
                    places = [self.place(sample, slot) for slot in added]
                    keys, values = (
                        torch.stack([self.row(cache, scales, shared, place) for place in places])
                        for cache, scales in ((self.k, options["k_scale"]), (self.v, options["v_scale"]))
                    )
                    scores = keys @ self.by_head(self.q)[sample, head, query].double() * scale
                    if options["softcap"]:
                        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
                    bias = torch.tensor(list(added.values()), dtype=torch.float64)
                    absorbed = bias <= torch.finfo(self.q.dtype).min
                    scores = torch.where(absorbed, bias, scores + bias)
                    if options["sink"] is not None:
                        scores = torch.cat([scores, options["sink"][head, None].double()])
                    weights = torch.softmax(scores, 0)[: len(places)]
                    result[sample, head, query] = weights @ values
        return self.by_head(result)

    def used(self) -> torch.Tensor:
        """Returns which rows of the cache any query sees, ``[samples or blocks, heads, rows]``."""
        used = torch.zeros(self.by_head(self.k).shape[:3], dtype=torch.bool)
        for sample in range(self.batch):
            for head in range(self.heads):
                shared = head // (self.heads // self.kv_heads)
                for query in range(self.queries):
                    for slot in self.masked(sample, head, query):
                        outer, row = self.place(sample, slot)
                        used[outer, shared, row] = True
        return used

    def check(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        assert got.shape == expected.shape and got.dtype == self.q.dtype
        values = [self.by_head(self.v)[self.used()].double().abs().max().item()] if self.used().any() else []
        if values and self.options["v_scale"] is not None:
            scales = self.options["v_scale"]
            values = [128 * scales[~scales.isnan()].abs().max().item()]
        bound = 4e-6 * max([1.0, *values])
        relative = {torch.float16: 2**-10, torch.bfloat16: 2**-8}.get(got.dtype, 0.0)
        torch.testing.assert_close(got.double(), expected, rtol=relative, atol=bound)


def case(seed: int) -> Case:
    """Returns a random call. Slots that no query sees contain NaN, and so do queries that see no slot."""
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    batch, kv_heads, group = choose.choice([1, 2, 3]), choose.choice([1, 2]), choose.choice([1, 2, 3])
    queries, capacity = choose.choice([1, 1, 2, 4, 40]), choose.choice([1, 5, 8, 24])
    size, value_size = choose.choice([1, 4, 8, 17]), choose.choice([1, 4, 16])
    heads = kv_heads * group
    layout, mode = choose.choice(["bhsd", "bshd"]), choose.choice(["linear", "linear", "circular"])
    has_tables = mode == "linear" and choose.random() < 0.3
    outer, rows, tables = batch, capacity, None
    if has_tables:
        rows = choose.choice([1, 3, 4])
        per_sample = choose.choice([1, 2, 4])
        outer = batch * per_sample + 1
        order = torch.randperm(outer, generator=generator)[: batch * per_sample]
        tables = order.view(batch, per_sample).to(choose.choice([torch.int32, torch.int64]))
        capacity = rows * per_sample
    most = 3 * capacity if mode == "circular" else capacity
    lengths = None
    if choose.random() < 0.8:
        lengths = torch.randint(0, most + 1, (batch,), generator=generator)
    starts = None
    if choose.random() < 0.3:
        starts = torch.randint(0, capacity + 2, (batch,), generator=generator)
    dtype = choose.choice([torch.float32, *HALVES, torch.float64])
    codes = choose.choice([dtype, dtype, torch.float32, *HALVES, torch.int8])
    q = arranged(choose, normal(batch, heads, queries, size).to(dtype), layout)
    cached = [normal(outer, kv_heads, rows, width) for width in (size, value_size)]
    scales: list[torch.Tensor | None] = [None, None]
    if codes is torch.int8:
        by_channel = choose.random() < 0.3
        shapes = [(kv_heads, size), (kv_heads, value_size)] if by_channel else [(outer, kv_heads, rows)] * 2
        scales = [normal(*shape).abs() / 50 for shape in shapes]
        cached = [(cache * 50).round().clamp(-128, 127) for cache in cached]
    k, v = (arranged(choose, cache.to(codes), layout) for cache in cached)
    options: dict[str, Any] = {
        "starts": starts,
        "causal": choose.random() < 0.7,
        "window": choose.choice([None, None, 1, 3, 2**63 - 1]),
        "scale": choose.choice([None, None, 0.0, 0.7]),
        "softcap": choose.choice([0.0, 0.0, 1.5]),
        "mask": _mask(choose, generator, (batch, heads, queries, capacity), dtype),
        "sink": normal(heads).to(dtype) if choose.random() < 0.3 else None,
        "mode": mode,
        "layout": layout,
        "k_scale": scales[0],
        "v_scale": scales[1],
        "block_tables": tables,
    }
    made = Case(q, k, v, lengths, options)
    _paint(made)
    return made


def arranged(choose: random.Random, dense: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a tensor ``[batch, heads, rows, size]`` in a layout, in memory with other strides."""
    order = choose.sample(range(3), 3)
    gap = choose.choice([0, 3])
    canvas = torch.zeros([*(dense.shape[d] for d in order), dense.shape[3] + gap], dtype=dense.dtype)
    view = canvas[..., : dense.shape[3]].permute(*(order.index(d) for d in range(3)), 3)
    view.copy_(dense)
    return view if layout == "bhsd" else view.transpose(1, 2)


def _mask(choose: random.Random, generator: torch.Generator, full: tuple[int, ...], dtype: Any) -> Any:
    kind = choose.choice(["none", "none", "bool", "numbers"])
    if kind == "none":
        return None
    shape = [size if choose.random() < 0.7 else 1 for size in full[:3]]
    shape = [*shape, choose.choice([full[3], full[3], max(full[3] - 1, 1)])][choose.randrange(4) :]
    is_shown = torch.rand(shape, generator=generator) < 0.7
    if kind == "bool":
        return is_shown
    hidden = choose.choice([-math.inf, torch.finfo(dtype).min])
    return (
        torch.randn(shape, generator=generator).to(dtype).where(is_shown, torch.tensor(hidden, dtype=dtype))
    )


def _paint(made: Case) -> None:
    for sample in range(made.batch):
        for head in range(made.heads):
            for query in range(made.queries):
                if not made.masked(sample, head, query):
                    made.by_head(made.q)[sample, head, query] = math.nan
    unused = ~made.used()
    for cache, name in ((made.k, "k_scale"), (made.v, "v_scale")):
        scales = made.options[name]
        if cache.is_floating_point():
            made.by_head(cache)[unused] = math.nan
        elif scales.dim() == 3:
            scales[unused] = math.nan
    if made.tables is not None:  # entries that nothing needs
        for sample in range(made.batch):
            slots = {slot for query in range(made.queries) for slot in made.seen(sample, query)}
            for index in range(made.tables.shape[1]):
                if not any(slot // made.rows == index for slot in slots):
                    made.tables[sample, index] = 77
