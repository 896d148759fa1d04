"""Tests that ``kvscatter generate`` chooses the same tokens as ONNX Runtime and NumPy, in either engine."""

import itertools
import json
import os
import pathlib

import numpy as np
import onnxruntime as ort
import pytest

from support import runs
from support.command import TESTDATA, kvscatter
from support.decoder import Growing, session

LIBRARY = os.environ["KVSCATTER_ORT_LIB"]
ENGINES = {"tract": [], "ort": ["--engine", "ort", "--ort-lib", LIBRARY]}
GROUP_QUERY = TESTDATA / "genai-llama-gqa" / "model.onnx"
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


def generated(model: pathlib.Path, engine: str, tokens: int, more: tuple[object, ...] = ()) -> dict:
    """Returns the document for all prompts in one batch of different lengths."""
    prompts = [word for ids in PROMPTS for word in ("--prompt-ids", ",".join(map(str, ids)))]
    options = ["--tokens", tokens, "--json", *ENGINES[engine], *more]
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


def greedy_in_one_buffer(prompt: list[int], tokens: int) -> list[int]:
    """Returns the tokens of ``GroupQueryAttention`` alone, token by token, with past and present in one buffer."""
    runtime = session(GROUP_QUERY)
    slots, binding = len(prompt) + tokens, runtime.io_binding()
    for layer, kind in itertools.product(range(2), ("key", "value")):
        cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 2, slots, 16), np.float32))
        binding.bind_ortvalue_input(f"past_key_values.{layer}.{kind}", cache)
        binding.bind_ortvalue_output(f"present.{layer}.{kind}", cache)
    fed, chosen = 0, []
    while len(chosen) < tokens:
        token = (prompt + chosen)[fed]
        fed += 1
        binding.bind_cpu_input("input_ids", np.array([[token]]))
        binding.bind_cpu_input("attention_mask", np.ones((1, fed), np.int64))
        binding.bind_output("logits")
        runtime.run_with_iobinding(binding)
        if fed >= len(prompt):
            chosen.append(int(binding.get_outputs()[-1].numpy()[0, -1].argmax()))
    return chosen


@pytest.mark.parametrize("options", [(), ("--chunk", 2), ("--capacity", 64)])
def test_an_operator_writes_its_caches_in_place_with_ragged_prompts(options):
    document = generated(GROUP_QUERY, "ort", 20, ("--no-convert", *options))
    assert [sample["tokens"] for sample in document["samples"]] == [
        greedy_in_one_buffer(ids, 20) for ids in PROMPTS
    ]
    assert document["cache_write"]["bytes_copied"] == 0
    # Two layers of keys and values with two heads of 16 float32, for each sample.
    assert document["cache_write"]["bytes_per_step"] == len(PROMPTS) * 512
    assert document["caches"]["capacity"] == (64 if "--capacity" in options else 5 + 19)
