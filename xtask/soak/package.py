"""Checks the installed Python package on the oracle's cases of a seed.

The last line has the numbers of calls that were accepted and refused. A difference is an error.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import kvscatter
from kvscatter import testing

CASES = 3000
OPERATORS = {
    "tensor_scatter": ("lengths", "out_of_range", "negative_index"),
    "kv_cache_update": ("lengths", "out_of_range"),
    "kv_cache_operation": ("lengths", "out_of_range"),
}


def _refused(
    fn: Callable[..., Any], operator: str, seed: int, extensions: Sequence[str], **options: Any
) -> int:
    """Checks a function, and returns how many of the cases it must refuse."""
    testing.check(fn, operator=operator, extensions=extensions, seed=seed, n=CASES, **options).assert_passed()
    drawn = testing.cases(seed, CASES, operators=(operator,), extensions=extensions)
    return sum(case.refusal is not None for case in drawn)


def _main(seed: int) -> None:
    refused = [
        _refused(getattr(kvscatter, f"{operator}_"), operator, seed, extensions, in_place=True)
        for operator, extensions in OPERATORS.items()
    ]
    functional = ("lengths", "negative_index")
    refused.append(_refused(kvscatter.tensor_scatter, "tensor_scatter", seed, functional))
    print(len(refused) * CASES - sum(refused), sum(refused))


_main(int(sys.argv[1]))
