"""Runs the examples in the compiled module's docstrings, which doctest does not find by itself."""

import doctest
import inspect

import pytest

import kvscatter
from kvscatter import _native


def documented():
    for name, member in inspect.getmembers(_native):
        members = inspect.getmembers(member) if inspect.isclass(member) else []
        for path, thing in [(name, member), *((f"{name}.{inner}", thing) for inner, thing in members)]:
            if ">>>" in (inspect.getdoc(thing) or ""):
                yield pytest.param(inspect.getdoc(thing), id=path)


@pytest.mark.parametrize("text", list(documented()))
def test_examples(text):
    example = doctest.DocTestParser().get_doctest(text, {"kvscatter": kvscatter}, "docstring", None, None)
    report = []
    assert not doctest.DocTestRunner().run(example, out=report.append).failed, "".join(report)
