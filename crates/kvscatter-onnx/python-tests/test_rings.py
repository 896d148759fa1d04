"""Tests decoders with sliding windows, whose caches become rings, against the exported decoders with growing caches."""

import json

import onnx
import pytest
from onnx import helper

from support.command import TESTDATA, kvscatter
from test_certify import certify, worst

GROUPED = TESTDATA / "genai-llama-gqa" / "model.onnx"
MISTRAL = TESTDATA / "decoders" / "optimum-0.1-mistral-window" / "model.onnx"
WINDOW = 5
SLOTS = 128


def with_windows(path, windows, **attributes):
    """Writes the decoder of GroupQueryAttention with a window in each layer, or none where it is 0."""
    model = onnx.load(GROUPED)
    nodes = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node, window in zip(nodes, windows, strict=True):
        values = attributes | ({"local_window_size": window} if window else {})
        for name, value in values.items():
            for old in [old for old in node.attribute if old.name == name]:
                node.attribute.remove(old)
            node.attribute.append(helper.make_attribute(name, value))
    onnx.save(model, path)
    return path


CASES = {
    "spelt-out": (lambda _: MISTRAL, 4),
    "all-layers": (lambda folder: with_windows(folder / "model.onnx", [WINDOW, WINDOW]), 4),
    "one-layer": (lambda folder: with_windows(folder / "model.onnx", [0, WINDOW]), 2),
    "two-windows": (lambda folder: with_windows(folder / "model.onnx", [WINDOW, 3]), 4),
    "sinks": (lambda folder: with_windows(folder / "model.onnx", [WINDOW, 0], smooth_softmax=1), 2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "sizes", [("--rewind", 8), ("--chunk", 3, "--rewind", 2)], ids=["default-chunk", "small"]
)
def test_rings_are_exact_over_three_wraps(case, sizes, tmp_path):
    make, rings = CASES[case]
    original = make(tmp_path)
    static = tmp_path / "static.onnx"
    converted = kvscatter("convert", original, "-o", static, "--max-seq", SLOTS, *sizes, "--json")
    sizes = json.loads(converted.stdout)["rings"]
    assert sum(size["caches"] for size in sizes) == rings
    certificate = certify(static, "--original", original)
    assert certificate["verdict"] == "passed"
    assert worst(certificate, "original") <= certificate["parameters"]["tolerance"]
    around = [check for check in certificate["evidence"]["observed"] if check["id"] == "rings-go-around"]
    assert [check["verdict"] for check in around] == ["passed"]


@pytest.mark.parametrize("case", CASES)
def test_twenty_windows_of_tokens_are_generated(case, tmp_path):
    make, _ = CASES[case]
    original = make(tmp_path)
    static = tmp_path / "static.onnx"
    kvscatter("convert", original, "-o", static, "--max-seq", SLOTS, "--chunk", 3, "--rewind", 1)
    prompts = ["5,9,7,3,1,2,4,8,6,7,7,5", "1,2,3"]
    together = [word for prompt in prompts for word in ("--prompt-ids", prompt)]

    def tokens(model, *words):
        done = kvscatter("generate", model, *words, "--tokens", 20 * WINDOW, "--engine", "ort", "--json")
        return [sample["tokens"] for sample in json.loads(done.stdout)["samples"]]

    alone = [tokens(original, "--prompt-ids", prompt) for prompt in prompts]
    assert tokens(static, *together) == [sample for (sample,) in alone]
