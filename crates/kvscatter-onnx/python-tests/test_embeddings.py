"""Tests decoders that take embeddings in place of token ids.

The decoders come from ``testdata``, without their embedding tables.
"""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.command import TESTDATA, convert, kvscatter
from support.decoder import session
from test_certify import certify, worst

DECODERS = [
    "genai-llama-gqa",
    "optimum-llama",
    "mobius-llama-dynamic",
    "decoders/torch-2.15-llama",
    "decoders/genai-0.18-llama-float16",
]


def without_table(model: onnx.ModelProto) -> np.ndarray:
    """Replaces the token ids by their embeddings. Returns the embedding table."""
    graph = model.graph
    ids = next(value for value in graph.input if value.name == "input_ids")
    gather = next(node for node in graph.node if node.op_type == "Gather" and node.input[1] == "input_ids")
    table = next(tensor for tensor in graph.initializer if tensor.name == gather.input[0])
    graph.node.remove(gather)
    for node in graph.node:
        for slot, name in enumerate(node.input):
            # Some exporters read the number of tokens from the token ids.
            if name in (gather.output[0], "input_ids"):
                node.input[slot] = "inputs_embeds"
    dims = [dim.dim_param or dim.dim_value for dim in ids.type.tensor_type.shape.dim]
    embeddings = helper.make_tensor_value_info("inputs_embeds", table.data_type, [*dims, table.dims[1]])
    ids.CopyFrom(embeddings)
    return numpy_helper.to_array(table)


@pytest.mark.parametrize("decoder", DECODERS)
def test_embeddings_take_the_place_of_token_ids(decoder, tmp_path):
    original = TESTDATA / decoder / "model.onnx"
    model = onnx.load(original)
    table = without_table(model)
    onnx.save(model, tmp_path / "model.onnx")
    converted = convert(tmp_path / "model.onnx", tmp_path / "static.onnx", 32)
    certificate = certify(converted, "--original", tmp_path / "model.onnx")
    assert certificate["verdict"] == "passed"
    assert worst(certificate, "original") <= certificate["parameters"]["tolerance"]

    # The rows of the table give the logits of the decoder with the table.
    with_table = session(convert(original, tmp_path / "with_table.onnx", 32))
    ids = np.random.default_rng(0).integers(0, table.shape[0], (2, 5))
    shared = {
        "attention_mask": np.arange(32) < np.full((2, 1), 5),
        "position_ids": np.tile(np.arange(5), (2, 1)),
        "write_indices": np.zeros(2, np.int64),
        "nonpad_kv_seqlen": np.full(2, 5),
        "input_ids": ids,
        "inputs_embeds": table[ids],
    }
    results = []
    for run in (with_table, session(converted)):
        feeds = {}
        for value in run.get_inputs():
            if value.name in shared:
                feed = shared[value.name]
                feeds[value.name] = feed if value.name == "inputs_embeds" else feed.astype(np.int64)
            else:
                shape = [dim if isinstance(dim, int) else 2 for dim in value.shape]
                feeds[value.name] = np.zeros(shape, table.dtype)
        results.append(run.run(["logits"], feeds)[0])
    np.testing.assert_array_equal(*results)


def test_sessions_name_what_they_cannot_feed(tmp_path):
    model = onnx.load(TESTDATA / "optimum-llama" / "model.onnx")
    without_table(model)
    onnx.save(model, tmp_path / "model.onnx")
    converted = convert(tmp_path / "model.onnx", tmp_path / "static.onnx", 32)
    done = kvscatter("generate", converted, "--prompt-ids", 1, "--tokens", 2, exit_code=2)
    assert done.stderr.startswith('error: input "inputs_embeds" takes embeddings'), done.stderr
