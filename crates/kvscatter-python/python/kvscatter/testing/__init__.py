"""Tests for your kernel: adversarial calls with their expected results, and a drawing of the failures as text.

>>> import numpy as np
>>> from kvscatter import testing
>>> def clamps(past_cache, update, write_indices, *, axis, mode):
...     present, rows = past_cache.copy(), update.shape[axis]
...     for sample in range(len(past_cache)):
...         start = 0 if write_indices is None else min(write_indices[sample], past_cache.shape[axis] - rows)
...         np.moveaxis(present[sample], axis % present.ndim - 1, 0)[start : start + rows] = np.moveaxis(
...             update[sample], axis % present.ndim - 1, 0
...         )
...     return present
>>> report = testing.check(clamps)
>>> report.passed
False
"""

from kvscatter.testing._case import Case, cases
from kvscatter.testing._check import check
from kvscatter.testing._compare import Row, WrongSlot
from kvscatter.testing._failure import Failure, Problem
from kvscatter.testing._report import Report

__all__ = ["Case", "Failure", "Problem", "Report", "Row", "WrongSlot", "cases", "check"]


def __dir__() -> list[str]:
    return __all__
