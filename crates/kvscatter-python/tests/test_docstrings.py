"""Runs the examples in the compiled module's docstrings, which doctest does not find by itself."""

import dataclasses
import doctest
import importlib
import inspect
import re

import pytest

import kvscatter
from kvscatter import _native, results


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


@pytest.mark.parametrize("module", [kvscatter.paged, kvscatter.positions, kvscatter.ring])
def test_every_function_has_an_example(module):
    assert all(">>>" in inspect.getdoc(getattr(module, name)) for name in module.__all__)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".cuda",
        ".errors",
        ".onnx_backend",
        ".onnxruntime",
        ".onnxruntime_genai",
        ".paged",
        ".positions",
        ".reference",
        ".results",
        ".ring",
        ".testing",
    ],
)
def test_dir_shows_no_imports(name):
    module = importlib.import_module(f"kvscatter{name}")
    assert dir(module) == sorted(module.__all__)


RESULTS = [of for of in vars(results).values() if dataclasses.is_dataclass(of)]


@pytest.mark.parametrize(
    "of", [kvscatter.CacheMemory, kvscatter.Generated, kvscatter.MemoryReport, kvscatter.Segment, *RESULTS]
)
def test_help_describes_every_field(of):
    described = re.findall(r"(?m)^ {4}(\w+): ", inspect.getdoc(of))
    inherited = [
        field.name
        for base in of.__bases__
        if dataclasses.is_dataclass(base)
        for field in dataclasses.fields(base)
    ]
    assert inherited + described == [field.name for field in dataclasses.fields(of)]
