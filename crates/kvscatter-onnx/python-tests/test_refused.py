"""Tests that unsupported models are refused: exit code 2, one line with the reason, and no file."""

import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from support.command import TESTDATA, kvscatter

LLAMA = TESTDATA / "decoders" / "torch-2.15-llama" / "model.onnx"


def refused(
    model: pathlib.Path, folder: pathlib.Path, *words: str, command=("convert", "--max-seq", 16)
) -> str:
    """Returns the one line, which must contain each of `words` in any case."""
    folder = folder / "out"
    folder.mkdir()
    name, *options = command
    done = kvscatter(name, model, "-o", folder / "model.onnx", *options, exit_code=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word.lower() in done.stderr.lower(), f"no {word!r} in: {done.stderr}"
    assert list(folder.iterdir()) == []
    return done.stderr


def edited(tmp_path: pathlib.Path, edit, original: pathlib.Path = LLAMA) -> pathlib.Path:
    """Returns a checked-in decoder with one change."""
    model = onnx.load(original)
    edit(model)
    path = tmp_path / "edited.onnx"
    onnx.save(model, path)
    return path


GQA = TESTDATA / "genai-llama-gqa" / "model.onnx"


@pytest.mark.parametrize("shared", [True, False], ids=["one-buffer", "two-buffers"])
def test_group_query_attention_writes_the_new_rows_alone_in_one_buffer(shared):
    """One buffer gets only the new rows. With two, all rows are copied."""
    session = ort.InferenceSession(GQA, providers=["CPUExecutionProvider"])
    slots, tokens = 16, np.arange(1, 7, dtype=np.int64)[None]
    pasts = [value for value in session.get_inputs() if value.name.startswith("past_key_values.")]
    whole = session.run(
        ["logits"],
        {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        | {past.name: np.zeros((1, 2, 0, 16), np.float32) for past in pasts},
    )[0]
    painted = np.full((1, 2, slots, 16), 7, np.float32)
    caches = {past.name: ort.OrtValue.ortvalue_from_numpy(painted.copy()) for past in pasts}
    read = 0
    for width in (3, 1, 1, 1):
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", tokens[:, read : read + width])
        binding.bind_cpu_input("attention_mask", np.ones((1, read + width), np.int64))
        given = {name: cache.numpy().copy() for name, cache in caches.items()}
        presents = {}
        for name, cache in caches.items():
            present = cache if shared else ort.OrtValue.ortvalue_from_numpy(np.zeros_like(painted))
            presents[name] = present
            binding.bind_ortvalue_input(name, cache)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), present)
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        logits = next(
            value for value in binding.get_outputs() if value.shape()[-1] == whole.shape[-1]
        ).numpy()
        np.testing.assert_allclose(logits[0], whole[0, read : read + width], rtol=1e-4, atol=1e-5)
        for name, present in presents.items():
            rows = present.numpy()
            written = (rows[0, 0] != given[name][0, 0]).any(axis=-1).nonzero()[0]
            if shared:
                assert written.tolist() == list(range(read, read + width)), name
            else:
                assert (rows[:, :, :read] == given[name][:, :, :read]).all(), name
        caches, read = presents, read + width


def test_a_static_cache_is_one_already(tmp_path):
    refused(TESTDATA / "mobius-llama-static" / "model.onnx", tmp_path, "TensorScatter")


def test_a_bias_that_is_not_proportional_to_the_distance(tmp_path):
    def bend(model):
        bias = "/transformer/Div_output_0"
        reader = next(index for index, node in enumerate(model.graph.node) if bias in node.input)
        node = model.graph.node[reader]
        node.input[:] = ["bent" if name == bias else name for name in node.input]
        model.graph.node.insert(reader, helper.make_node("Sqrt", [bias], ["bent"]))

    refused(
        edited(tmp_path, bend, TESTDATA / "decoders" / "optimum-1.18-falcon" / "model.onnx"),
        tmp_path,
        "mask",
        "bias",
        "slot",
    )


def test_a_model_without_a_cache(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "relu.onnx")
    refused(tmp_path / "relu.onnx", tmp_path, "no", "cache")


def test_a_cache_that_is_not_fed_back(tmp_path):
    def forget(model):
        kept = [value for value in model.graph.output if value.name != "present.1.key"]
        del model.graph.output[:]
        model.graph.output.extend(kept)

    refused(edited(tmp_path, forget), tmp_path, "past_key_values.1.key")


def value_of(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    return next(value for value in [*model.graph.input, *model.graph.output] if value.name == name)


def test_one_symbol_for_two_lengths(tmp_path):
    """The present is declared as long as the past, although new tokens are appended to it."""

    def contradict(model):
        past, present = value_of(model, "past_key_values.0.key"), value_of(model, "present.0.key")
        present.type.CopyFrom(past.type)

    refused(edited(tmp_path, contradict), tmp_path, "present.0.key")


def test_a_past_and_a_present_of_other_heads(tmp_path):
    def contradict(model):
        value_of(model, "present.0.key").type.tensor_type.shape.dim[1].dim_value = 7

    refused(edited(tmp_path, contradict), tmp_path, "present.0.key", "7")


@pytest.mark.parametrize("version", [7, 99])
def test_an_unsupported_operator_set(tmp_path, version):
    def choose(model):
        model.opset_import[0].version = version

    refused(edited(tmp_path, choose), tmp_path, f"version {version}", "operator set")


def test_external_data_that_is_missing(tmp_path):
    shutil.copy(TESTDATA / "mobius-llama-dynamic" / "model.onnx", tmp_path / "alone.onnx")
    refused(tmp_path / "alone.onnx", tmp_path, "model.onnx.data")


def test_external_data_that_is_too_short(tmp_path):
    original = TESTDATA / "mobius-llama-dynamic"
    shutil.copy(original / "model.onnx", tmp_path / "short.onnx")
    data = (original / "model.onnx.data").read_bytes()
    (tmp_path / "model.onnx.data").write_bytes(data[: len(data) // 2])
    refused(tmp_path / "short.onnx", tmp_path, "model.onnx.data")


def test_a_cycle(tmp_path):
    def tie(model):
        first = next(node for node in model.graph.node if node.op_type == "MatMul")
        later = [node for node in model.graph.node if node.op_type == "MatMul"][-1]
        first.input[0] = later.output[0]

    refused(edited(tmp_path, tie), tmp_path, "cycle")


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "noise.onnx"
    path.write_bytes(np.random.default_rng(1).bytes(4096))
    refused(path, tmp_path, "noise.onnx")


def test_a_model_that_is_not_there(tmp_path):
    refused(tmp_path / "absent.onnx", tmp_path, "absent.onnx")


@pytest.mark.parametrize("slots", [0, -1, "many", 2**63])
def test_a_capacity_that_is_none(tmp_path, slots):
    out = tmp_path / "model.onnx"
    done = kvscatter("convert", LLAMA, "-o", out, f"--max-seq={slots}", exit_code=2)
    assert "max-seq" in done.stderr.replace("_", "-")
    assert not out.exists()


def test_the_model_is_not_written_over(tmp_path):
    model = tmp_path / "model.onnx"
    shutil.copy(LLAMA, model)
    done = kvscatter("convert", model, "-o", model, "--max-seq", 16, exit_code=2)
    assert "model.onnx" in done.stderr
    assert model.read_bytes() == LLAMA.read_bytes()
    assert list(tmp_path.iterdir()) == [model]
