"""The painted tensors of a case, and their expected contents after the writes."""

import dataclasses
from collections.abc import Sequence

import torch

from cases import HEADS, WIDTH, Case, Write, cache_sets, update_sets, writes_of
from place import Place

# The number of elements around each cache that no write may touch.
GUARD = 4096
# A bound that gives finite float16 numbers, because some peers compute with them.
PAINTS = 0x4000

Tensors = list[torch.Tensor]


@dataclasses.dataclass
class Block:
    """A float16 tensor between guards."""

    whole: torch.Tensor
    shape: tuple[int, ...]

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor without the guards."""
        return self.whole[GUARD:-GUARD].view(self.shape)

    def copy(self) -> "Block":
        """Returns a copy with its guards."""
        return Block(self.whole.clone(), self.shape)

    def paint(self, seed: int) -> None:
        """Fills the tensor and its guards with numbers that depend only on the seed."""
        generator = torch.Generator(self.whole.device).manual_seed(seed)
        self.whole.view(torch.int16).random_(0, PAINTS, generator=generator)


class Memory:
    """The caches, updates and starts of all writes of a case."""

    def __init__(self, case: Case, place: Place, cache_level: int, budget: int) -> None:
        """Allocates at most `budget` bytes each for the caches, their expected contents, and the updates."""
        self.case = case
        self.place = place
        self.device = place.device
        sets = cache_sets(case, cache_level, budget)
        updates = update_sets(case, budget)
        self.writes: list[Write] = writes_of(case, sets, updates)

        def blocks(count: int, rows: int) -> list[list[Block]]:
            shape = (case.batch, HEADS, rows, WIDTH)
            size = case.batch * HEADS * rows * WIDTH + 2 * GUARD
            return [
                [Block(place.empty(size, torch.float16), shape) for _ in range(case.tensors)]
                for _ in range(count)
            ]

        # The tensors that are written: caches, or presents.
        self.written = blocks(sets, case.capacity)
        self.kept = blocks(sets, case.capacity) if case.is_functional else []
        self.new = blocks(updates, case.rows)
        for seed, block in enumerate(block for group in (*self.kept, *self.new) for block in group):
            block.paint(seed)
        # Each list has separate memory, so that it is aligned.
        self.starts = [place.empty(case.batch, torch.int64) for _ in self.writes]
        for starts, write in zip(self.starts, self.writes, strict=True):
            starts.copy_(torch.tensor(write.starts))
        self.wanted = self._wanted()
        self.paint()

    @property
    def caches(self) -> list[Tensors]:
        """The tensors that are written, by sets: caches, or presents."""
        return [[block.tensor for block in blocks] for blocks in self.written]

    @property
    def pasts(self) -> list[Tensors]:
        """The pasts of the functional form, by sets."""
        return [[block.tensor for block in blocks] for blocks in self.kept]

    @property
    def updates(self) -> list[Tensors]:
        """The updates, by sets."""
        return [[block.tensor for block in blocks] for blocks in self.new]

    def paint(self) -> None:
        """Restores the contents before any write."""
        for seed, block in enumerate(block for blocks in self.written for block in blocks):
            block.paint(-1 - seed)

    def wrong(self, elsewhere: Sequence[Tensors] | None = None) -> str | None:
        """Returns the first tensor with a wrong value, if any.

        `elsewhere` are caches that a library keeps in its own memory, without guards.
        """
        for at, wanted in enumerate(self.wanted):
            for tensor, block in enumerate(wanted):
                got = self.written[at][tensor].whole if elsewhere is None else elsewhere[at][tensor]
                want = block.whole if elsewhere is None else block.tensor
                if not torch.equal(got.view(torch.int16), want.view(torch.int16)):
                    return f"tensor {tensor} of set {at}"
        return None

    def _wanted(self) -> list[list[Block]]:
        """Returns the expected contents, from one write after the other, a sample at a time."""
        self.paint()
        found = [[block.copy() for block in blocks] for blocks in self.written]
        for write in self.writes:
            for tensor, block in enumerate(found[write.caches]):
                present, update = block.tensor, self.new[write.update][tensor].tensor
                if self.case.is_functional:
                    present.copy_(self.kept[write.caches][tensor].tensor)
                for sample, start in enumerate(write.starts):
                    present[sample, :, start : start + self.case.rows] = update[sample]
        return found
