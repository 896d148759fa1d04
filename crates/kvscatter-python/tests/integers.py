"""Lists the integer arguments that the package's type annotations declare, and checks the values for which
each must raise an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvscatter
from support import refused

PACKAGE = Path(kvscatter.__file__).parent

BEYOND = (-(2**63) - 1, 2**64, -(10**30), 10**30)
"""Integers that no argument accepts. The last two do not fit any type of the compiled module."""
UNLIKE = (1.5, "1", True, b"1", object())
"""Values that are not integers. Python treats a boolean as an integer."""


def declared(*files: str) -> set[str]:
    """Returns ``module.function.argument`` for each argument of a public function that may be an integer."""
    return {
        f"{Path(file).stem}.{function}.{argument.arg}"
        for file in files
        for function, arguments in _functions(ast.parse((PACKAGE / file).read_text()))
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if argument.annotation and re.search(r"\b(int|Integer)\b", ast.unparse(argument.annotation))
    }


def _functions(tree: ast.Module | ast.ClassDef, inside: str = "") -> Iterator[tuple[str, ast.arguments]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _functions(node, f"{node.name}.")
        if isinstance(node, ast.FunctionDef) and node.name in {"__init__", "__new__"}:
            yield inside.rstrip("."), node.args
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{inside}{node.name}", node.args


def check(name: str, call: Callable[[Any], object], *, optional: bool = False) -> None:
    """Checks that all bad values raise this package's errors about this argument."""
    argument = name.rpartition(".")[2]
    for value in BEYOND:
        error = _refused(argument, call, value)
        assert str(value) in str(error), f"{name} = {value}: {error}"
        assert error.value == value or error.axis == value, f"{name} = {value}: {error!r}"
    for value in (*UNLIKE, *(() if optional else (None,))):
        error = _refused(argument, call, value)
        assert "integer" in str(error), f"{name} = {value!r}: {error}"
    # Python does not print such a large number.
    _refused(argument, call, 10**5000)


def _refused(argument: str, call: Callable[[Any], object], value: object) -> kvscatter.Error:
    with pytest.raises(kvscatter.Error) as caught:
        call(value)
    error = caught.value
    assert error.argument == argument and argument in str(error), f"{argument} = {value!r:.40}: {error!r}"
    return refused(error.kind, argument, call, value)
