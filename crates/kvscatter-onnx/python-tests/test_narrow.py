"""Tests in ONNX Runtime what ``kvscatter convert --cache-type`` stores, and how far results move."""

import numpy as np
import onnx
import pytest

from support.command import TESTDATA, convert
from support.decoder import Static
from support.runs import SLOTS, VOCABULARY, canaries

DECODERS = ["optimum-llama", "mobius-llama-dynamic", "genai-llama-gqa", "decoders/optimum-1.18-gpt2"]
TYPES = {
    "float16": ["--cache-type", "float16"],
    "int8": ["--cache-type", "int8"],
    "int8-not-rotated": ["--cache-type", "int8", "--no-rotation"],
}

# The largest difference of logits, relative to the largest logit.
TOLERANCE = {"float16": 2e-3, "int8": 0.1, "int8-not-rotated": 0.1}


@pytest.fixture(scope="module", params=DECODERS, ids=lambda name: name.split("/")[-1])
def models(request, tmp_path_factory):
    """Returns a decoder with wide caches, and those with caches of each narrower type."""
    original = TESTDATA / request.param / "model.onnx"
    folder = tmp_path_factory.mktemp("narrow")
    narrow = {
        name: convert(original, folder / f"{name}.onnx", SLOTS, *options) for name, options in TYPES.items()
    }
    return convert(original, folder / "wide.onnx", SLOTS), narrow


def run(model):
    """Runs two samples in two steps. Returns the logits and the caches."""
    decoder = Static(model, 2, canaries)
    ids = np.random.default_rng(3).integers(1, VOCABULARY, (2, SLOTS))
    logits = []
    for start, end in [(0, 9), (9, SLOTS)]:
        mask = np.broadcast_to((np.arange(SLOTS) < end).astype(np.int64), (2, SLOTS))
        positions = np.broadcast_to(np.arange(start, end), (2, end - start))
        logits.append(decoder.step(ids[:, start:end], mask, positions, np.full(2, start)))
    return np.concatenate(logits, axis=1), decoder.snapshot()


def rotation(size: int) -> np.ndarray:
    """Returns Hadamard matrices of the largest power of two from 16 that divides the size."""
    block = size & -size
    if block < 16:
        return np.eye(size)
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.kron(np.eye(size // block), matrix / np.sqrt(block))


@pytest.mark.parametrize("name", TYPES)
def test_the_checker_accepts_it_and_shapes_are_inferred(models, name):
    onnx.checker.check_model(models[1][name], full_check=True)
    model = onnx.load(models[1][name])
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


@pytest.mark.parametrize("name", TYPES)
def test_logits_are_near_those_of_wide_caches(models, name):
    wide, narrow = run(models[0])[0], run(models[1][name])[0]
    difference = np.abs(wide - narrow).max() / np.abs(wide).max()
    assert 0 < difference <= TOLERANCE[name], difference


@pytest.mark.parametrize("name", TYPES)
def test_stored_rows_are_within_their_bound(models, name):
    """Compares the first layer, whose new rows do not depend on a cache."""
    wide, narrow = run(models[0])[1], run(models[1][name])[1]
    for past in ["past_key_values.0.key", "past_key_values.0.value"]:
        given, stored = wide[past].astype(np.float64), narrow[past].astype(np.float64)
        if name == "float16":
            np.testing.assert_array_equal(narrow[past], wide[past].astype(np.float16))
            continue
        if name == "int8" and past.endswith("key"):
            given = given @ rotation(given.shape[-1])
        assert np.abs(narrow[past]).max() == 127
        scale = narrow[f"{past}_scale"].astype(np.float64)
        # The rows of the two models differ in their last bits.
        slack = 1e-6 * np.abs(given).max(axis=-1, keepdims=True)
        np.testing.assert_allclose(scale, np.abs(given).max(axis=-1, keepdims=True) / 127, rtol=2e-6)
        assert (np.abs(stored * scale - given) <= scale * (0.5 + 2.0**-16) + slack).all()
