"""The cases that are timed, and the slots of each write."""

import dataclasses
import random

HEADS = 8
WIDTH = 128
ELEMENT_BYTES = 2  # float16

# The bytes per microsecond and the microseconds per launch with which the time of a case is estimated.
GUESSED_RATE = 3e6
GUESSED_LAUNCH = 1.5
# The time for all writes of one sample, in microseconds.
SAMPLE = 1500
FEWEST_WRITES = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """float16 caches `[batch, 8, capacity, 128]`, updates `[batch, 8, rows, 128]`, one launch for all `tensors`."""

    batch: int
    rows: int
    capacity: int
    # Whether each sample has another start.
    is_ragged: bool = False
    # Whether the write goes into a present and keeps the past.
    is_functional: bool = False
    # A key and a value cache, or those of several layers.
    tensors: int = 2
    most_writes: int = 256

    @property
    def is_decode(self) -> bool:
        """Returns True if the update has one row."""
        return self.rows == 1

    @property
    def label(self) -> str:
        """Returns the case in words, such as "decode, B 64, ragged"."""
        phase = "decode" if self.is_decode else f"prefill {self.rows}"
        what = [phase, f"B {self.batch}", "ragged" if self.is_ragged else "uniform"]
        if self.is_functional:
            what.append("functional")
        if self.tensors > 2:
            what.append(f"{self.tensors} jobs")
        return ", ".join(what)

    @property
    def update_bytes(self) -> int:
        """The bytes in the updates of all tensors."""
        return self.tensors * self.batch * HEADS * self.rows * WIDTH * ELEMENT_BYTES

    @property
    def cache_bytes(self) -> int:
        """The bytes in the caches of all tensors."""
        return self.tensors * self.batch * HEADS * self.capacity * WIDTH * ELEMENT_BYTES

    @property
    def copied_bytes(self) -> int:
        """The number of bytes that must be read. The same number must be written."""
        return self.cache_bytes if self.is_functional else self.update_bytes

    @property
    def writes(self) -> int:
        """The number of writes that are timed together. Each goes to another place."""
        guess = GUESSED_LAUNCH + 2 * self.copied_bytes / GUESSED_RATE
        return min(max(round(SAMPLE / guess), FEWEST_WRITES), self.most_writes)


DECODE = [
    Case(1, 1, 4096),
    *[Case(batch, 1, 4096, is_ragged) for batch in (8, 64, 256) for is_ragged in (False, True)],
]
PREFILL = [
    *[Case(1, rows, 8192) for rows in (512, 4096)],
    *[Case(8, rows, 8192, is_ragged) for rows in (512, 4096) for is_ragged in (False, True)],
]
# Fewer writes, because peers that take a launch for each tensor have graphs with thousands of launches.
JOBS = [Case(batch, 1, 1024, batch > 1, tensors=64, most_writes=64) for batch in (1, 8, 64)]
FUNCTIONAL = [
    *[Case(batch, 1, 4096, batch > 1, is_functional=True) for batch in (1, 8, 64)],
    Case(1, 4096, 8192, is_functional=True),
    Case(8, 512, 4096, is_ragged=True, is_functional=True),
]
CASES = [*DECODE, *PREFILL, *JOBS, *FUNCTIONAL]

# The same kinds of cases for a machine without a GPU, but small.
SMALL = [
    dataclasses.replace(case, most_writes=5)
    for case in [
        Case(1, 1, 16),
        Case(3, 1, 16, is_ragged=True),
        Case(2, 5, 16),
        Case(2, 5, 16, is_ragged=True),
        Case(2, 1, 8, is_ragged=True, tensors=64),
        Case(2, 3, 16, is_ragged=True, is_functional=True),
        Case(1, 3, 16, is_functional=True),
    ]
]


@dataclasses.dataclass(frozen=True)
class Write:
    """One of a case's writes."""

    # The numbers of the set of caches and of the set of updates.
    caches: int
    update: int
    starts: tuple[int, ...]


def cache_sets(case: Case, cache_level: int, memory: int) -> int:
    """Returns how many sets of caches are used in turn.

    Together they are at least four times the last cache level, and no more than `memory`.
    """
    wanted = max(2, -(-4 * cache_level // case.cache_bytes))
    return max(1, min(wanted, memory // case.cache_bytes, case.writes))


def update_sets(case: Case, memory: int) -> int:
    """Returns how many sets of updates are used in turn: one for each write, if there is enough memory."""
    return max(1, min(case.writes, memory // case.update_bytes))


def writes_of(case: Case, caches: int, updates: int) -> list[Write]:
    """Returns all writes of a case.

    Two writes into one set of caches go to different slots, as long as there are unused slots.
    """
    numbers = random.Random(1)
    in_turn = -(-case.writes // caches)
    starts = []
    for _ in range(caches):
        columns = [slots(case, in_turn, numbers) for _ in range(case.batch if case.is_ragged else 1)]
        # The first write reaches the last slot.
        columns[0][0] = case.capacity - case.rows
        rows = [*zip(*columns, strict=True)]
        starts.append(rows if case.is_ragged else [row * case.batch for row in rows])
    return [
        Write(number % caches, number % updates, starts[number % caches][number // caches])
        for number in range(case.writes)
    ]


def slots(case: Case, count: int, numbers: random.Random) -> list[int]:
    """Returns starts in random order. None is repeated before all have been used."""
    free = list(range(0, case.capacity - case.rows, case.rows)) or [0]
    numbers.shuffle(free)
    return [free[turn % len(free)] for turn in range(count)]
