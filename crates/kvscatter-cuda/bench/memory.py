"""The tensors of a case, painted, and what must be in them afterwards."""

import dataclasses
from collections.abc import Sequence

import torch

from cases import HEADS, WIDTH, Case, Write, cache_sets, update_sets, writes_of
from place import Place

# Elements around each cache that nobody may write.
GUARD = 4096
# Finite float16 numbers, since some peers compute with them.
PAINTS = 0x4000

Tensors = list[torch.Tensor]


@dataclasses.dataclass
class Block:
    """A float16 tensor between guards."""

    whole: torch.Tensor
    shape: tuple[int, ...]

    @property
    def tensor(self) -> torch.Tensor:
        """Without the guards."""
        return self.whole[GUARD:-GUARD].view(self.shape)

    def copy(self) -> "Block":
        """With its guards."""
        return Block(self.whole.clone(), self.shape)

    def paint(self, seed: int) -> None:
        """Fills tensor and guards; the same with the same seed."""
        generator = torch.Generator(self.whole.device).manual_seed(seed)
        self.whole.view(torch.int16).random_(0, PAINTS, generator=generator)


class Memory:
    """Caches, updates and starts of all writes of a case."""

    def __init__(self, case: Case, place: Place, cache_level: int, budget: int) -> None:
        """`budget`: bytes that one of the caches, what they should hold, and the updates may each take."""
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

        # What is written: caches, or presents.
        self.written = blocks(sets, case.capacity)
        self.kept = blocks(sets, case.capacity) if case.is_functional else []
        self.new = blocks(updates, case.rows)
        for seed, block in enumerate(block for group in (*self.kept, *self.new) for block in group):
            block.paint(seed)
        # Each in memory of its own, and so aligned.
        self.starts = [place.empty(case.batch, torch.int64) for _ in self.writes]
        for starts, write in zip(self.starts, self.writes, strict=True):
            starts.copy_(torch.tensor(write.starts))
        self.wanted = self._wanted()
        self.paint()

    @property
    def caches(self) -> list[Tensors]:
        """What is written, by sets: caches, or presents."""
        return [[block.tensor for block in blocks] for blocks in self.written]

    @property
    def pasts(self) -> list[Tensors]:
        """What the functional form keeps."""
        return [[block.tensor for block in blocks] for blocks in self.kept]

    @property
    def updates(self) -> list[Tensors]:
        """What is to be written, by sets."""
        return [[block.tensor for block in blocks] for blocks in self.new]

    def paint(self) -> None:
        """Everything as it was before any write."""
        for seed, block in enumerate(block for blocks in self.written for block in blocks):
            block.paint(-1 - seed)

    def wrong(self, elsewhere: Sequence[Tensors] | None = None) -> str | None:
        """Where something else is than should be, or in caches that are `elsewhere`, which have no guards."""
        for at, wanted in enumerate(self.wanted):
            for tensor, block in enumerate(wanted):
                got = self.written[at][tensor].whole if elsewhere is None else elsewhere[at][tensor]
                want = block.whole if elsewhere is None else block.tensor
                if not torch.equal(got.view(torch.int16), want.view(torch.int16)):
                    return f"tensor {tensor} of set {at}"
        return None

    def _wanted(self) -> list[list[Block]]:
        """Every write after the other, a sample at a time."""
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
