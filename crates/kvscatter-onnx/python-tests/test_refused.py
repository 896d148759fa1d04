"""What cannot be converted is refused: exit code 2, one line that names what is wrong, and nothing left behind."""

import pathlib
import shutil

import numpy as np
import onnx
import pytest
from onnx import helper

from support.command import TESTDATA, kvscatter

LLAMA = TESTDATA / "decoders" / "torch-2.15-llama" / "model.onnx"


def refused(
    model: pathlib.Path, folder: pathlib.Path, *words: str, command=("convert", "--max-seq", 16)
) -> str:
    """The one line; each of `words` is in it, in whatever case."""
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


def edited(tmp_path: pathlib.Path, edit) -> pathlib.Path:
    """The checked-in decoder with one thing changed."""
    model = onnx.load(LLAMA)
    edit(model)
    path = tmp_path / "edited.onnx"
    onnx.save(model, path)
    return path


def test_group_query_attention_needs_no_conversion(tmp_path):
    model = TESTDATA / "genai-llama-gqa" / "model.onnx"
    refused(model, tmp_path, "GroupQueryAttention", "past", "present", "shar")


def test_a_static_cache_is_one_already(tmp_path):
    refused(TESTDATA / "mobius-llama-static" / "model.onnx", tmp_path, "TensorScatter")


def test_a_sliding_window_is_no_rule_of_visibility(tmp_path):
    model = TESTDATA / "decoders" / "optimum-0.1-mistral-window" / "model.onnx"
    refused(model, tmp_path, "mask", "hides")


def test_a_bias_is_no_mask(tmp_path):
    refused(TESTDATA / "decoders" / "optimum-1.18-falcon" / "model.onnx", tmp_path, "mask", "bias")


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
    """The present is said to be as long as the past, though new tokens are joined to it."""

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


def test_a_folder_that_is_not_there(tmp_path):
    done = kvscatter("convert", LLAMA, "-o", tmp_path / "no" / "model.onnx", "--max-seq", 16, exit_code=2)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
