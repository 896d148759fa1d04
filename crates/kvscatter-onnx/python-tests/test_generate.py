"""Tests that ``kvscatter generate`` chooses the same tokens as ONNX Runtime and NumPy, in either engine."""

import json
import os
import pathlib

import numpy as np
import pytest

from support import runs
from support.command import TESTDATA, kvscatter
from support.decoder import Growing

LIBRARY = os.environ["KVSCATTER_ORT_LIB"]
ENGINES = {"tract": [], "ort": ["--engine", "ort", "--ort-lib", LIBRARY]}
PROMPTS = [[1, 2, 3], [9], [7, 7, 4, 30, 7]]


def greedy(original: pathlib.Path, prompt: list[int], tokens: int) -> list[int]:
    """Returns the tokens of the original after a prompt, alone in its batch."""
    decoder = Growing(original)
    decoder.start(1)
    new, chosen, length = prompt, [], 0
    while len(chosen) < tokens:
        positions = np.arange(length, length + len(new))[None]
        length += len(new)
        logits = decoder.step(np.array([new]), np.ones((1, length), np.int64), positions)
        new = [int(logits[0, -1].argmax())]
        chosen += new
    return chosen


def generated(model: pathlib.Path, engine: str, tokens: int) -> dict:
    """Returns the document for all prompts in one batch of different lengths."""
    prompts = [word for ids in PROMPTS for word in ("--prompt-ids", ",".join(map(str, ids)))]
    options = ["--tokens", tokens, "--json", *ENGINES[engine]]
    return json.loads(kvscatter("generate", model, *prompts, *options).stdout)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_converted_decoder_generates_what_its_original_does(converted, engine):
    tokens = runs.SLOTS - max(map(len, PROMPTS)) + 1
    if engine == "tract" and converted.original.parent.name == "optimum-1.18-opt":
        done = kvscatter("generate", converted.model, "--prompt-ids", 1, "--tokens", 2, exit_code=2)
        assert 'node "/decoder/embed_positions/CumSum"' in done.stderr
        return
    document = generated(converted.model, engine, tokens)
    expected = [greedy(converted.original, prompt, tokens) for prompt in PROMPTS]
    assert [sample["tokens"] for sample in document["samples"]] == expected
    assert document["cache_write"]["bytes_copied"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_static_export_generates_what_another_export_does(engine):
    """Both exports have the same weights."""
    document = generated(TESTDATA / "mobius-llama-static" / "model.onnx", engine, 20)
    original = TESTDATA / "optimum-llama" / "model.onnx"
    assert [sample["tokens"] for sample in document["samples"]] == [
        greedy(original, ids, 20) for ids in PROMPTS
    ]
