"""Compares the rule for rings with a ring that is written slot by slot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kvscatter
from kvscatter import ring

LARGEST = 2**63 - 1


class Sample:
    """A sample in a ring, whose rows are numbers that no other write has."""

    def __init__(self, capacity: int, window: int) -> None:
        self.slots = np.zeros((1, capacity, 1), np.int64)
        self.rows: dict[int, int] = {}
        self.window, self.high, self.next_row = window, 0, 1

    def step(self, start: int, rows: int) -> bool:
        """Writes a step. Returns whether each query finds its window, which the rule must predict."""
        capacity = self.slots.shape[1]
        takes = rows <= ring.most_rows(capacity, self.window, self.high, start)
        self.high = ring.high_after(self.high, start, rows)
        new = np.arange(self.next_row, self.next_row + rows).reshape(1, rows, 1)
        self.next_row += rows
        self.rows.update(zip(range(start, start + rows), new.ravel().tolist(), strict=True))
        exact = rows <= capacity
        if exact:
            kvscatter.tensor_scatter_(self.slots, new, [start], mode="circular")
        for query in range(start, start + rows):
            for position in range(max(0, query - self.window + 1), query + 1):
                exact = exact and self.slots[0, position % capacity, 0] == self.rows[position]
        assert exact == takes, (capacity, self.window, self.high, start, rows)
        return exact


@pytest.mark.parametrize(("window", "capacity"), [(w, c) for w in (1, 2, 3) for c in range(w, 7)])
def test_a_step_is_exact_if_and_only_if_the_ring_takes_it(window: int, capacity: int) -> None:
    for rewinds in itertools.product(range(4), repeat=2):
        for rows in itertools.product((1, 2, 3), repeat=2):
            sample = Sample(capacity, window)
            assert all(sample.step(position, 1) for position in range(12))
            start = 12
            for rewind, count in zip(rewinds, rows, strict=True):
                start -= rewind
                if not sample.step(start, count):
                    break
                start += count


def test_a_batch_is_an_array() -> None:
    got = ring.most_rows(11, 8, np.array([100, 100, 3], np.int32), [100, 95, 0])
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, [4, 0, 11])
    np.testing.assert_array_equal(ring.high_after([5, 5], [3, 0], 1), [5, 1])
    np.testing.assert_array_equal(ring.least_start(11, 8, [5, 100]), [0, 96])
    assert type(ring.most_rows(np.int8(11), 8, np.int64(100), 100)) is int
    assert ring.least_start(11, 8, []).shape == (0,)


def test_the_least_capacity_depends_on_the_feeding() -> None:
    assert [
        ring.least_capacity(8, 4, 2, "without_padding"),
        ring.least_capacity(8, 4, 2, "padded_on_the_right"),
        ring.least_capacity(8, 4, 2, "idle"),
    ] == [11, 12, 13]


def test_the_largest_numbers_do_not_overflow() -> None:
    assert ring.least_capacity(LARGEST, LARGEST, LARGEST, "idle") == LARGEST
    assert ring.high_after(LARGEST, LARGEST, LARGEST) == LARGEST
    assert ring.most_rows(LARGEST, LARGEST, LARGEST, LARGEST) == 1
