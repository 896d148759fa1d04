"""Triton kernels as one would write them for this job: one launch for all tensors, whole rows at a time."""

import os
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from cases import HEADS, WIDTH
from memory import Memory, Tensors
from way import Absent, Role, Way

# The maximum number of rows that a program moves.
MOST_ROWS = 16


# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
@triton.jit
def move(
    cache, update, starts, rows, capacity, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Writes a block of rows into one cache."""
    line = tl.program_id(0)
    start = tl.load(starts + line // HEADS)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    old = update + (line.to(tl.int64) * rows + row) * WIDTH + lane
    new = cache + (line.to(tl.int64) * capacity + start + row) * WIDTH + lane
    # Triton does not know that addresses from a table are aligned.
    moved = tl.load(tl.multiple_of(old, [16, 16]), mask=row < rows)
    tl.store(tl.multiple_of(new, [16, 16]), moved, mask=row < rows)


@triton.jit
def pair(
    key,
    value,
    new_key,
    new_value,
    starts,
    rows,
    capacity,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes two caches in place."""
    if tl.program_id(2) == 0:
        move(key, new_key, starts, rows, capacity, HEADS, WIDTH, BLOCK)
    else:
        move(value, new_value, starts, rows, capacity, HEADS, WIDTH, BLOCK)


@triton.jit
def many(
    caches, updates, starts, rows, capacity, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Writes any number of caches in place, with tables of addresses."""
    cache = tl.load(caches + tl.program_id(2)).to(tl.pointer_type(tl.float16))
    update = tl.load(updates + tl.program_id(2)).to(tl.pointer_type(tl.float16))
    move(cache, update, starts, rows, capacity, HEADS, WIDTH, BLOCK)


@triton.jit
def merge(
    present,
    past,
    update,
    starts,
    rows,
    capacity,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes a block of slots of one present."""
    line = tl.program_id(0).to(tl.int64)
    start = tl.load(starts + line // HEADS)
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    is_there = slot < capacity
    is_new = (slot >= start) & (slot < start + rows)
    kept = tl.load(past + (line * capacity + slot) * WIDTH + lane, mask=is_there & (is_new == 0), other=0.0)
    new = tl.load(update + (line * rows + slot - start) * WIDTH + lane, mask=is_new, other=0.0)
    tl.store(present + (line * capacity + slot) * WIDTH + lane, tl.where(is_new, new, kept), mask=is_there)


@triton.jit
def merge_pair(
    key,
    value,
    past_key,
    past_value,
    new_key,
    new_value,
    starts,
    rows,
    capacity,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes two presents in one pass."""
    if tl.program_id(2) == 0:
        merge(key, past_key, new_key, starts, rows, capacity, HEADS, WIDTH, BLOCK)
    else:
        merge(value, past_value, new_value, starts, rows, capacity, HEADS, WIDTH, BLOCK)


def ways(memory: Memory) -> list[Way]:
    """Returns one way, on the current stream."""
    if memory.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Absent("no GPU")
    return [Way("Triton kernel", Role.PEER, writer(memory))]


def writer(memory: Memory) -> Callable[[int], None]:
    """Returns the suitable kernel, with all fixed arguments bound."""
    case = memory.case
    caches, pasts, updates = memory.caches, memory.pasts, memory.updates
    along = case.capacity if case.is_functional else case.rows
    block = min(MOST_ROWS, triton.next_power_of_2(along))
    grid = (case.batch * HEADS, triton.cdiv(along, block), case.tensors)
    sizes: dict[str, Any] = {
        "HEADS": HEADS,
        "WIDTH": WIDTH,
        "BLOCK": block,
        "num_warps": 4 if block > 1 else 1,
    }
    kernel: Any = merge_pair if pasts else pair if case.tensors == 2 else many
    if kernel is many:
        caches, updates = addresses(caches), addresses(updates)
    starts = memory.starts

    def write(number: int) -> None:
        at = memory.writes[number]
        old = pasts[at.caches] if pasts else []
        tensors = (*caches[at.caches], *old, *updates[at.update])
        kernel[grid](*tensors, starts[number], case.rows, case.capacity, **sizes)

    return write


def addresses(sets: list[Tensors]) -> list[Tensors]:
    """Returns a table of addresses on the device for each set."""
    return [
        [torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64, device=tensors[0].device)]
        for tensors in sets
    ]
