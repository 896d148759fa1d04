import dataclasses
from functools import partial

import pytest
import torch

import one_case
from cases import SMALL, Case
from memory import GUARD, Memory
from place import Cpu
from way import Role, Way

of_each_case = pytest.mark.parametrize("case", SMALL, ids=lambda case: case.label)


def memory_of(case: Case) -> Memory:
    return Memory(case, Cpu(), 1 << 12, 1 << 22)


def slices(memory: Memory, number: int) -> None:
    at = memory.writes[number]
    for tensor, (cache, update) in enumerate(
        zip(memory.caches[at.caches], memory.updates[at.update], strict=True)
    ):
        if memory.pasts:
            cache.copy_(memory.pasts[at.caches][tensor])
        for sample, start in enumerate(at.starts):
            cache[sample, :, start : start + memory.case.rows] = update[sample]


@of_each_case
def test_a_right_write_is_right(case: Case) -> None:
    memory = memory_of(case)
    way = Way("slices", Role.PEER, partial(slices, memory))
    one_case.check(memory, way, partial(one_case.enqueue_all, memory, way))


@of_each_case
def test_a_write_left_out_a_guard_and_a_wrong_bit_are_found(case: Case) -> None:
    memory = memory_of(case)
    way = Way("wrong", Role.PEER, partial(slices, memory))

    def all_but_the_last() -> None:
        for number in range(len(memory.writes) - 1):
            way.write(number)

    def around(at: int) -> None:
        one_case.enqueue_all(memory, way)
        memory.written[0][-1].whole[at] += 1

    for work in (
        all_but_the_last,
        partial(around, GUARD - 1),
        partial(around, -GUARD),
        partial(around, GUARD),
    ):
        with pytest.raises(one_case.WrongResult, match="wrong: tensor"):
            one_case.check(memory, way, work)


def test_the_ceiling_is_not_compared() -> None:
    memory = memory_of(SMALL[0])
    one_case.check(memory, Way("copy", Role.CEILING, lambda number: None), lambda: None)


def test_paint_is_the_same_with_the_same_seed_and_finite() -> None:
    memory = memory_of(dataclasses.replace(SMALL[0], most_writes=1))
    first = memory.written[0][0].copy()
    memory.paint()
    assert torch.equal(first.whole, memory.written[0][0].whole)
    assert bool(torch.isfinite(first.whole).all())
    assert not torch.equal(first.whole, memory.written[0][1].whole)
