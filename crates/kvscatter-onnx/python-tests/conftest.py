"""Decoders, converted once for all tests.

``cargo xtask models`` sets two variables: KVSCATTER_COMMAND, the command line tool, and KVSCATTER_ORT_LIB, the
library of this environment's ONNX Runtime.
"""

import dataclasses
import pathlib

import pytest

from support import runs
from support.command import TESTDATA, convert

DECODERS = [
    "optimum-llama",
    "mobius-llama-dynamic",
    "decoders/optimum-1.18-gpt2",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-0.1-qwen3-moe",
    "decoders/optimum-1.18-opt",
    "decoders/torch-2.15-llama",
    "decoders/mobius-0.1-gpt2",
    "decoders/mobius-0.1-qwen3-float16",
    "decoders/optimum-llama-4bit",
]


@dataclasses.dataclass(frozen=True)
class Converted:
    """A decoder before and after, and what it says before."""

    original: pathlib.Path
    model: pathlib.Path
    references: list[runs.Reference]


@pytest.fixture(scope="session", params=DECODERS, ids=lambda name: pathlib.Path(name).name)
def converted(request, tmp_path_factory) -> Converted:
    """Each decoder with a cache of `runs.SLOTS` slots."""
    original = TESTDATA / request.param / "model.onnx"
    folder = tmp_path_factory.mktemp("converted")
    model = convert(original, folder / "model.onnx", runs.SLOTS)
    return Converted(original, model, runs.references(original))


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> pathlib.Path:
    """The smallest converted model whose weights are inside."""
    folder = tmp_path_factory.mktemp("llama")
    original = TESTDATA / "decoders" / "torch-2.15-llama" / "model.onnx"
    return convert(original, folder / "model.onnx", runs.SLOTS)
