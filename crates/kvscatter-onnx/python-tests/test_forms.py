"""Tests that decoders whose caches have other layouts or types compute the same after the conversion.

Each decoder is `optimum-llama` with other caches, so the results are those of `optimum-llama`.
"""

import dataclasses
import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import runs
from support.command import TESTDATA, convert
from support.decoder import present_of, session
from support.runs import LENGTHS, SLOTS, Batch

ORIGINAL = TESTDATA / "optimum-llama" / "model.onnx"
HEADS, SIZE = 2, 16
LENGTH = "past_sequence_length"


class Editor:
    """Llama while its caches are changed."""

    def __init__(self):
        self.model = onnx.load(ORIGINAL)
        self.graph = self.model.graph

    def constant(self, *values: int) -> str:
        name = f"constant_of_{'_'.join(map(str, values))}"
        if name not in {each.name for each in self.graph.initializer}:
            self.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def writers(self):
        """Yields the nodes that append to caches, the last one first."""
        for node in list(self.graph.node)[::-1]:
            if node.op_type == "Concat" and node.input[0].startswith("past_key_values."):
                yield node, *node.input, *node.output

    def replace(self, node, new):
        at = list(self.graph.node).index(node)
        nodes = [*self.graph.node[:at], *new, *self.graph.node[at + 1 :]]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def reroute(self, old, new):
        for node in self.graph.node:
            for slot, name in enumerate(node.input):
                if name == old:
                    node.input[slot] = new

    def declare(self, name, element, dims):
        for values in (self.graph.input, self.graph.output):
            for value in values:
                if value.name == name:
                    value.CopyFrom(helper.make_tensor_value_info(name, element, dims))

    def lengths_at(self, past, axis):
        """Lets the nodes that ask for the length of a past find it at another axis."""
        for node in list(self.graph.node):
            if node.op_type == "Shape" and node.input[0] == past:
                shape = helper.make_node("Shape", [past], [f"shape of {past}"])
                indices = [shape.output[0], self.constant(0, 0, axis, 0)]
                self.replace(node, [shape, helper.make_node("Gather", indices, node.output)])


def present_dims(dims):
    return [f"{LENGTH} + sequence_length" if dim == LENGTH else dim for dim in dims]


def relaid(perm, axis, is_merged) -> onnx.ModelProto:
    """Returns llama with its caches transposed, and with samples and heads merged into one axis."""
    editor = Editor()
    dims = [["batch_size", HEADS, LENGTH, SIZE][axis] for axis in perm]
    if is_merged:
        dims[:2] = ["batch_size x heads"]
    for writer, past, update, present in editor.writers():
        editor.reroute(present, f"old {present}")
        rows, old = f"rows of {present}", f"old {present}"
        nodes = [helper.make_node("Transpose", [update], [rows], perm=perm)]
        if is_merged:
            inner, shape, merged = (f"{what} of {rows}" for what in ("inner", "shape", "merged"))
            nodes += [
                helper.make_node("Shape", [rows], [inner], start=2),
                helper.make_node("Concat", [editor.constant(-1), inner], [shape], axis=0),
                helper.make_node("Reshape", [rows, shape], [merged]),
                helper.make_node("Concat", [past, merged], [present], axis=axis),
            ]
            inner, shape, split = (f"{what} of {present}" for what in ("inner", "shape", "split"))
            nodes += [
                helper.make_node("Shape", [present], [inner], start=1),
                helper.make_node("Concat", [editor.constant(-1, HEADS), inner], [shape], axis=0),
                helper.make_node("Reshape", [present, shape], [split]),
                helper.make_node("Transpose", [split], [old], perm=perm),
            ]
        else:
            nodes += [
                helper.make_node("Concat", [past, rows], [present], axis=axis),
                helper.make_node("Transpose", [present], [old], perm=perm),
            ]
        editor.replace(writer, nodes)
        editor.lengths_at(past, axis)
        editor.declare(past, TensorProto.FLOAT, dims)
        editor.declare(present, TensorProto.FLOAT, present_dims(dims))
    return editor.model


def packed() -> onnx.ModelProto:
    """Returns llama with one cache for keys and values of each layer, as GPT-BigCode has it."""
    editor = Editor()
    width = HEADS * SIZE
    writers = list(editor.writers())
    for (values_at, value_past, values, value_present), (writer, past, keys, present) in zip(
        writers[::2], writers[1::2], strict=True
    ):
        nodes = []
        for part, update in [("keys", keys), ("values", values)]:
            by_token, flat = (f"{what} {part} of {present}" for what in ("by token", "flat"))
            nodes.append(helper.make_node("Transpose", [update], [by_token], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [by_token, editor.constant(0, 0, width)], [flat]))
        rows = f"rows of {present}"
        halves = [f"half {part} of {present}" for part in ("keys", "values")]
        parts = [f"flat {part} of {present}" for part in ("keys", "values")]
        nodes += [
            helper.make_node("Concat", parts, [rows], axis=-1),
            helper.make_node("Concat", [past, rows], [present], axis=-2),
            helper.make_node("Split", [present, editor.constant(width, width)], halves, axis=-1),
        ]
        for half, old in zip(halves, [present, value_present], strict=True):
            editor.reroute(old, f"old {old}")
            by_head = f"by head {half}"
            nodes.append(helper.make_node("Reshape", [half, editor.constant(0, 0, HEADS, SIZE)], [by_head]))
            nodes.append(helper.make_node("Transpose", [by_head], [f"old {old}"], perm=[0, 2, 1, 3]))
        editor.replace(values_at, nodes)
        editor.replace(writer, [])
        editor.lengths_at(past, 1)
        dims = ["batch_size", LENGTH, 2 * width]
        editor.declare(past, TensorProto.FLOAT, dims)
        editor.declare(present, TensorProto.FLOAT, present_dims(dims))
        for values, name in [(editor.graph.input, value_past), (editor.graph.output, value_present)]:
            values.remove(next(value for value in values if value.name == name))
    return editor.model


def with_casts(is_back) -> onnx.ModelProto:
    """Returns llama with pasts of float16, as it is left by tools that convert some layers."""
    editor = Editor()
    for writer, past, update, present in editor.writers():
        wide, written = f"wide {past}", f"written {present}" if is_back else present
        editor.reroute(present, written)
        nodes = [
            helper.make_node("Cast", [past], [wide], to=TensorProto.FLOAT),
            helper.make_node("Concat", [wide, update], [written], axis=-2),
        ]
        if is_back:
            nodes.append(helper.make_node("Cast", [written], [present], to=TensorProto.FLOAT16))
        editor.replace(writer, nodes)
        dims = ["batch_size", HEADS, LENGTH, SIZE]
        editor.declare(past, TensorProto.FLOAT16, dims)
        element = TensorProto.FLOAT16 if is_back else TensorProto.FLOAT
        editor.declare(present, element, present_dims(dims))
    return editor.model


FORMS = {
    "tokens-first": lambda: relaid([0, 2, 1, 3], 1, False),
    "turned": lambda: relaid([0, 1, 3, 2], 3, False),
    "merged": lambda: relaid([0, 1, 2, 3], 1, True),
    "merged-and-turned": lambda: relaid([0, 1, 3, 2], 2, True),
    "packed": packed,
    "widened": lambda: with_casts(False),
    "cast-back": lambda: with_casts(True),
}


@pytest.fixture(scope="module")
def references() -> list[runs.Reference]:
    return runs.references(ORIGINAL)


@pytest.fixture(params=FORMS)
def form(request, tmp_path) -> tuple[str, pathlib.Path]:
    """Converts a decoder with caches of another form."""
    model = FORMS[request.param]()
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "exported.onnx")
    converted = convert(tmp_path / "exported.onnx", tmp_path / "model.onnx", SLOTS)
    onnx.checker.check_model(converted, full_check=True)
    return request.param, converted


def expected(name: str, reference: runs.Reference) -> runs.Reference:
    """Returns what a decoder of a form computes for a stream of llama."""
    caches = reference.caches
    if name == "packed":
        by_token = {key: np.concatenate(list(cache), axis=-1)[None] for key, cache in caches.items()}
        caches = {
            key: np.concatenate([cache, by_token[key.replace(".key", ".value")]], axis=-1)
            for key, cache in by_token.items()
            if key.endswith(".key")
        }
    if name == "cast-back":
        halved = {key: cache.astype(np.float16) for key, cache in caches.items()}
        return dataclasses.replace(reference, logits=reference.logits.astype(np.float16), caches=halved)
    return dataclasses.replace(reference, caches=caches)


def test_it_computes_the_same_with_its_caches_in_place(form, references):
    name, model = form
    batch = Batch(model, [expected(name, each) for each in references])
    batch.step(LENGTHS, 0)
    batch.step((2, 3, 2), 1)
    while batch.read.max() < SLOTS:
        batch.step((1, 1, 1), 0)


def with_state() -> onnx.ModelProto:
    """Returns llama with a causal convolution after its embeddings, whose state is the last two columns."""
    editor = Editor()
    editor.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    table = next(node for node in editor.graph.node if node.name == "/model/embed_tokens/Gather")
    embedded = table.output[0]
    table.output[0] = "embedded"
    kernel = np.random.default_rng(4).standard_normal((64, 1, 3)).astype(np.float32)
    editor.graph.initializer.append(numpy_helper.from_array(kernel, "kernel"))
    conv = helper.make_node(
        "CausalConvWithState",
        ["by_channel", "kernel", "", "past.conv"],
        ["mixed", "present.conv"],
        domain="com.microsoft",
        activation="none",
    )
    nodes = [
        helper.make_node("Transpose", ["embedded"], ["by_channel"], perm=[0, 2, 1]),
        conv,
        helper.make_node("Transpose", ["mixed"], [embedded], perm=[0, 2, 1]),
    ]
    editor.replace(table, [table, *nodes])
    for values, name in [(editor.graph.input, "past.conv"), (editor.graph.output, "present.conv")]:
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch_size", 64, 2]))
    return editor.model


def test_a_state_is_fed_back_and_the_logits_are_the_same(tmp_path):
    onnx.save(with_state(), tmp_path / "exported.onnx")
    convert(tmp_path / "exported.onnx", tmp_path / "model.onnx", SLOTS)
    try:
        growing = session(tmp_path / "exported.onnx")
    except ort.capi.onnxruntime_pybind11_state.Fail:
        pytest.skip("this ONNX Runtime has no CausalConvWithState")
    static = session(tmp_path / "model.onnx")
    tokens = np.random.default_rng(5).integers(1, 60, (2, SLOTS))
    names = [value.name for value in growing.get_inputs() if value.name.startswith("past")]
    outputs = ["logits", *(present_of(name).replace("past.", "present.") for name in names)]
    caches = [name for name in names if name != "past.conv"]
    grown = {name: np.zeros((2, HEADS, 0, SIZE), np.float32) for name in caches}
    fixed = {name: np.zeros((2, HEADS, SLOTS, SIZE), np.float32) for name in caches}
    for kept in (grown, fixed):
        kept["past.conv"] = np.zeros((2, 64, 2), np.float32)
    for start, end in [(0, 5), (5, 8), *((at, at + 1) for at in range(8, SLOTS))]:
        width = end - start
        step = {
            "input_ids": tokens[:, start:end],
            "position_ids": np.broadcast_to(np.arange(start, end), (2, width)).copy(),
        }
        mask = np.ones((2, end), np.int64)
        expected, *presents = growing.run(outputs, {**step, **grown, "attention_mask": mask})
        grown = dict(zip(names, presents, strict=True))
        more = {
            "attention_mask": np.pad(mask, ((0, 0), (0, SLOTS - end))),
            "write_indices": np.full(2, start),
            "nonpad_kv_seqlen": np.full(2, end),
        }
        logits, *presents = static.run(outputs, {**step, **fixed, **more})
        fixed = dict(zip(names, presents, strict=True))
        runs.close(logits, expected, f"logits from {start}")
        runs.close(fixed["past.conv"], grown["past.conv"], f"the state from {start}")
