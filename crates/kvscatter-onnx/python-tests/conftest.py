"""Decoders that are converted once for all tests.

``cargo xtask models`` sets two variables. KVSCATTER_COMMAND is the command line tool, and KVSCATTER_ORT_LIB
is the library of this environment's ONNX Runtime.
"""

import dataclasses
import pathlib

import pytest

from support import runs
from support.command import TESTDATA, convert

DECODERS = [
    "optimum-llama",
    "mobius-llama-dynamic",
    "genai-llama-gqa",
    "decoders/optimum-1.18-gpt2",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-0.1-qwen3-moe",
    "decoders/optimum-0.1-mistral-window",
    "decoders/optimum-1.18-opt",
    "decoders/optimum-1.18-falcon",
    "decoders/torch-2.15-llama",
    "decoders/torch-2.15-gemma3",
    "decoders/mobius-0.1-gpt2",
    "decoders/mobius-0.1-qwen3-float16",
    "decoders/optimum-llama-4bit",
    "decoders/genai-0.18-llama-float16",
    "decoders/genai-0.18-hunyuan",
    "decoders/onnxruntime-1.32-gpt2",
]


@dataclasses.dataclass(frozen=True)
class Converted:
    """A decoder before and after the conversion, with the results of the original."""

    original: pathlib.Path
    model: pathlib.Path
    references: list[runs.Reference]


@pytest.fixture(scope="session", params=DECODERS, ids=lambda name: pathlib.Path(name).name)
def converted(request, tmp_path_factory) -> Converted:
    """Converts each decoder to a cache of `runs.SLOTS` slots."""
    original = TESTDATA / request.param / "model.onnx"
    folder = tmp_path_factory.mktemp("converted")
    model = convert(original, folder / "model.onnx", runs.SLOTS)
    return Converted(original, model, runs.references(original))


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> pathlib.Path:
    """Returns the smallest converted model that contains its weights."""
    folder = tmp_path_factory.mktemp("llama")
    original = TESTDATA / "decoders" / "torch-2.15-llama" / "model.onnx"
    return convert(original, folder / "model.onnx", runs.SLOTS)
