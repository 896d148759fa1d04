"""Runs a kernel on the oracle's cases."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscatter._arrays import Array
from kvscatter.testing._case import Case, Extension, Operator, cases, left_out
from kvscatter.testing._compare import compare, hint, same
from kvscatter.testing._failure import Failure, Problem
from kvscatter.testing._report import Report

_POSITIONAL: dict[Operator, int] = {"tensor_scatter": 3, "kv_cache_update": 4, "kv_cache_operation": 5}
"""The number of arguments that are passed by position."""


def check(
    fn: Callable[..., Any],
    *,
    seed: int = 0,
    n: int = 1000,
    operator: Operator = "tensor_scatter",
    dtypes: Sequence[npt.DTypeLike] | None = None,
    extensions: Collection[Extension] = (),
    in_place: bool = False,
    refusals: bool = True,
) -> Report:
    """Checks ``fn`` on ``n`` cases of an operator and reports its failures.

    ``fn`` is called with NumPy arrays, with one of these signatures:

    - ``fn(past_cache, update, write_indices, *, axis, mode)``, where ``write_indices`` may be None
    - ``fn(cache, update, writeIndices, updateLengths)``, where ``updateLengths`` is None for a padded update
    - ``fn(past, newKv, layerId, tokenOffset, seqLen)``

    A functional kernel returns the whole new cache, as anything that ``numpy.asarray`` accepts, and changes
    none of its arguments. With ``in_place``, the kernel writes into the cache that it is given, and its
    return value is ignored. A kernel rejects a call by raising any exception without changing anything. With
    ``refusals=False``, all calls are valid. See ``cases`` for ``dtypes`` and ``extensions``. The arguments
    that ``extensions`` names are passed by name in the cases that use them.

    Results are compared bit for bit. The function raises the same errors as ``cases``. Exceptions of ``fn``
    are in the report.
    """
    failures = []
    drawn = cases(seed, n, operators=(operator,), dtypes=dtypes, extensions=extensions)
    total = 0
    for case in drawn:
        if case.refusal is not None and not refusals:
            continue
        total += 1
        failure = _run(fn, case, in_place)
        if failure is not None:
            failures.append(failure)
    return Report(total, tuple(failures), left_out() if dtypes is None else ())


def _run(fn: Callable[..., Any], case: Case, in_place: bool) -> Failure | None:
    given = copy.deepcopy(case.arguments)
    values = list(given.values())
    positional = _POSITIONAL[case.operator]
    by_name = dict(list(given.items())[positional:])
    result, raised = None, None
    try:
        result = fn(*values[:positional], **by_name)
    except Exception as exception:
        raised = exception
    cache_name = next(name for name, value in case.arguments.items() if value is case.cache)
    may_change = in_place and raised is None
    when = " before the call was refused" if raised is not None and case.refusal is not None else ""
    problems = [
        Problem("argument_changed", f"{name} was changed{when}")
        for name, value in given.items()
        if isinstance(value, np.ndarray)
        and not (may_change and name == cache_name)
        and not same(value, case.arguments[name])
    ]
    if case.refusal is not None:
        if raised is None:
            problems.append(Problem("not_refused", f"accepted what must be refused: {case.refusal}"))
        return Failure(case, tuple(problems)) if problems else None
    if raised is not None:
        problems.append(Problem("raised", f"raised {type(raised).__name__}: {_first_line(raised)}"))
        return Failure(case, tuple(problems), exception=raised)
    present = given[cache_name] if in_place else result
    return _judged(case, present, problems)


def _judged(case: Case, result: Any, problems: list[Problem]) -> Failure | None:
    present, cache = _as_array(result), case.cache
    if present is None:
        problems.append(Problem("no_array", f"returned {type(result).__name__}, which is not an array"))
        return Failure(case, tuple(problems))
    if present.shape != cache.shape:
        problems.append(Problem("wrong_shape", f"returned shape {present.shape}, must be {cache.shape}"))
    if present.dtype != cache.dtype:
        problems.append(Problem("wrong_dtype", f"returned {present.dtype}, must be {cache.dtype}"))
    if present.shape != cache.shape or present.dtype != cache.dtype:
        return Failure(case, tuple(problems))
    assert case.expected is not None
    if same(present, case.expected):
        return Failure(case, tuple(problems)) if problems else None
    lanes = compare(case, present)
    return Failure(case, tuple(problems), lanes=lanes, hint=hint(case, lanes, present))


def _as_array(result: Any) -> Array | None:
    """Returns the array, or None if the result is not an array. NumPy makes an object array of anything."""
    if isinstance(result, np.ndarray):
        return result
    array = np.asarray(result)
    return None if array.dtype.hasobject else array


def _first_line(exception: Exception) -> str:
    return (str(exception).splitlines() or [""])[0]
