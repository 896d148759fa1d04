"""Helpers for several test modules: bitwise comparison of arrays, views with guards around them, calls that
must fail, edited models, examples."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import kvscatter
from kvscatter.testing import Case

Array = npt.NDArray[Any]

ROOT = Path(__file__).parents[3]
TESTDATA = ROOT / "testdata"


def check_sharded_example(name: str) -> None:
    """Checks that a program of ``examples/sharded`` succeeds, and that docs/scale.md shows the table it prints."""
    program = [sys.executable, ROOT / "examples" / "sharded" / name]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[-1]
    assert table.count("correct") == 3, done.stdout
    assert table in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8"), table


def first_calls(by: str, *names: str) -> None:
    """Checks that first calls of ``first_calls.py`` end although a signal handler or a finalizer repeats them."""
    program = [sys.executable, Path(__file__).with_name("first_calls.py"), by, *names]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(names)


def bits(array: Array) -> Any:
    """Returns the bits of an array, so that NaNs with the same payload are equal and zeros of different
    signs are not."""
    if array.dtype == object:
        return array.tolist()
    return array.tobytes()


def strided(array: Array, rng: random.Random) -> tuple[Array, Array]:
    """Returns the same values in a view with permuted dimensions, gaps and negative steps, and the array
    around the view."""
    order = rng.sample(range(array.ndim), array.ndim)
    steps = [rng.choice((1, 1, 2, 3)) for _ in order]
    signs = [rng.choice((1, 1, -1)) for _ in order]
    margin = rng.randrange(3)
    sizes = [array.shape[d] * step + 2 * margin for d, step in zip(order, steps, strict=True)]
    canvas = np.zeros(sizes, array.dtype)
    if array.dtype == object:
        canvas.fill("guard")
    else:
        canvas.reshape(-1).view(np.uint8)[:] = 0xA5 if array.dtype != bool else 1
    cut = tuple(
        slice(margin, margin + array.shape[d] * step, step) for d, step in zip(order, steps, strict=True)
    )
    turned = canvas[(*cut, ...)][(*(slice(None, None, sign) for sign in signs), ...)]
    view = turned.transpose(np.argsort(order))
    assert view.shape == array.shape
    view[...] = array
    return view, canvas


def in_place(case: Case, cache: Array, update: Array) -> int:
    """Runs the case in place on these arrays and returns the number of skipped samples."""
    arguments = dict(case.arguments)
    if case.operator == "tensor_scatter":
        del arguments["past_cache"], arguments["update"]
        return kvscatter.tensor_scatter_(cache, update, **arguments)
    if case.operator == "kv_cache_update":
        return kvscatter.kv_cache_update_(**{**arguments, "cache": cache, "update": update})
    return kvscatter.kv_cache_operation_(**{**arguments, "past": cache, "newKv": update})


def refused(
    kind: str,
    argument: str | None,
    function: Callable[..., object],
    *arguments: Any,
    of: type[kvscatter.Error] = kvscatter.Error,
    **keywords: Any,
) -> kvscatter.Error:
    """Returns the error of a call, which must have this kind and argument and a message of one line."""
    with pytest.raises(of) as caught:
        function(*arguments, **keywords)
    error, message = caught.value, str(caught.value)
    assert (error.kind, error.argument) == (kind, argument), message
    assert not message[0].isupper() and "\n" not in message
    return error


def edited(model: Path, into: Path, edit: Mapping[str, Callable[[Array], Array]]) -> Path:
    """Saves a model whose initializers of these names are edited, with its weights in the file."""
    # Some environments do not have the package.
    import onnx
    from onnx import numpy_helper

    changed = onnx.load(model)
    for initializer in changed.graph.initializer:
        if initializer.name in edit:
            values = edit[initializer.name](numpy_helper.to_array(initializer))
            initializer.CopyFrom(numpy_helper.from_array(values, initializer.name))
    onnx.save(changed, into)
    return into
