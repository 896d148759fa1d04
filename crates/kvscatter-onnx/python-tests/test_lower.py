"""Tests that ``kvscatter lower`` removes TensorScatter and preserves all bits."""

import itertools

import numpy as np
import onnx
import pytest

from support.command import kvscatter
from support.decoder import present_of, session
from support.runs import LENGTHS, SLOTS, canaries

TARGETS = ["scatter-elements", "scatter-nd"]


def lowered(model, out, target):
    kvscatter("lower", model, "--to", target, "-o", out)
    onnx.checker.check_model(out, full_check=True)
    return out


def nodes(path) -> set[str]:
    return {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}


@pytest.mark.parametrize("target", TARGETS)
def test_a_converted_decoder_says_the_same(converted, tmp_path, target):
    """Compares logits and whole caches of a batch, for every order of different lengths."""
    out = lowered(converted.model, tmp_path / "model.onnx", target)
    assert "TensorScatter" not in nodes(out)
    assert {"scatter-elements": "ScatterElements", "scatter-nd": "ScatterND"}[target] in nodes(out)
    before, after = session(converted.model), session(out)
    names = [value.name for value in before.get_outputs()]
    assert names == [value.name for value in after.get_outputs()]
    for order in itertools.permutations(LENGTHS):
        starts, tokens = np.array(order, np.int64), 3
        positions = starts[:, None] + np.arange(tokens)
        given = {
            "input_ids": positions % 60,
            "attention_mask": np.ones((len(starts), SLOTS), np.int64),
            "position_ids": positions,
            "write_indices": starts,
            "nonpad_kv_seqlen": starts + tokens,
        }
        feeds = {}
        for index, value in enumerate(before.get_inputs()):
            if value.name in given:
                feeds[value.name] = given[value.name]
            else:
                shape = (len(starts), *value.shape[1:])
                dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16}[value.type]
                feeds[value.name] = canaries(index, shape).astype(dtype)
        for name, one, other in zip(names, before.run(None, feeds), after.run(None, feeds), strict=True):
            assert one.tobytes() == other.tobytes(), name
        assert set(map(present_of, feeds)) & set(names)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, 2, 3, -1, -2, -3])
def test_one_node_of_any_axis_and_mode(tmp_path, target, mode, axis):
    """Writes three samples at different starts. In a ring, the starts are past its end."""
    past_shape, rows = [3, 4, 5, 6], 3
    update_shape = list(past_shape)
    update_shape[axis] = rows
    slots = past_shape[axis]
    node = onnx.helper.make_node(
        "TensorScatter", ["past", "update", "starts"], ["present"], axis=axis, mode=mode
    )
    float_, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    symbols = ["batch", *past_shape[1:]], ["batch", *update_shape[1:]]
    inputs = [
        onnx.helper.make_tensor_value_info("past", float_, symbols[0]),
        onnx.helper.make_tensor_value_info("update", float_, symbols[1]),
        onnx.helper.make_tensor_value_info("starts", int64, ["batch"]),
    ]
    outputs = [onnx.helper.make_tensor_value_info("present", float_, symbols[0])]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    imports = [onnx.helper.make_opsetid("", 24)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=11)
    onnx.save(model, tmp_path / "one.onnx")
    out = lowered(tmp_path / "one.onnx", tmp_path / "lowered.onnx", target)
    past = canaries(0, tuple(past_shape)).astype(np.float32)
    update = 2 + canaries(1, tuple(update_shape)).astype(np.float32)
    starts = np.array([0, slots - rows, 1 if mode == "linear" else slots - 1], np.int64)
    expected = past.copy()
    written, values = np.moveaxis(expected, axis, 1), np.moveaxis(update, axis, 1)
    for sample, start in enumerate(starts):
        for row in range(rows):
            written[sample, (start + row) % slots] = values[sample, row]
    feeds = {"past": past, "update": update, "starts": starts}
    (actual,) = session(out).run(None, feeds)
    assert actual.tobytes() == expected.tobytes()
