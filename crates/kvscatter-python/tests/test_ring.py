"""Tests the numbers of `ring` on one sample and on a batch. The core compares the rule with rings that are written."""

from __future__ import annotations

import numpy as np

from kvscatter import ring

LARGEST = 2**63 - 1


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
        ring.least_capacity(8, rows=6, rewind=0, feeding="padded_on_the_right"),
        ring.least_capacity(8, 0, 6, "padded_on_the_right"),
    ] == [11, 12, 13, 13, 12]


def test_the_largest_numbers_do_not_overflow() -> None:
    assert ring.least_capacity(LARGEST, LARGEST, LARGEST, "idle") == LARGEST
    assert ring.high_after(LARGEST, LARGEST, LARGEST) == LARGEST
    assert ring.most_rows(LARGEST, LARGEST, LARGEST, LARGEST) == 1
