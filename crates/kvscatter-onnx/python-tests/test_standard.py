"""Tests that operators of ONNX Runtime become standard ones that compute the same in ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support import runs
from support.command import TESTDATA, convert, kvscatter
from support.runs import LENGTHS, SLOTS, Batch

GROUPED = TESTDATA / "genai-llama-gqa" / "model.onnx"


def nodes_of(model: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == op_type]


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def initializer(model: onnx.ModelProto, name: str, values: np.ndarray) -> str:
    model.graph.initializer.append(numpy_helper.from_array(values, name))
    return name


def attributes(**values):
    """Sets attributes of every attention."""

    def edit(model):
        for node in nodes_of(model, "GroupQueryAttention"):
            for name, value in values.items():
                set_attribute(node, name, value)

    return edit


def windows(model):
    """Only the second layer has a window, as in models that alternate between both."""
    set_attribute(nodes_of(model, "GroupQueryAttention")[1], "local_window_size", 3)


def position_ids(model):
    """The caller feeds the positions."""
    shape = ["batch_size", "sequence_length"]
    model.graph.input.append(helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, shape))
    for node in nodes_of(model, "GroupQueryAttention"):
        node.input[9] = "position_ids"


def lengths_by_mask(model):
    """The longest length is that of the mask's sums, as GenAI computes it for graphs that are captured."""
    total = nodes_of(model, "GroupQueryAttention")[0].input[6]
    cast = next(node for node in model.graph.node if total in node.output)
    sums = nodes_of(model, "ReduceSum")[0].output[0]
    largest = helper.make_node("ReduceMax", [sums], ["largest"], keepdims=0, name="largest")
    model.graph.node.insert(list(model.graph.node).index(cast), largest)
    cast.input[0] = "largest"


def separate(model):
    """Queries, keys and values are not packed."""
    sizes = initializer(model, "sizes", np.array([64, 32, 32]))
    for index, node in enumerate(nodes_of(model, "GroupQueryAttention")):
        parts = [f"{part}.{index}" for part in "qkv"]
        split = helper.make_node("Split", [node.input[0], sizes], parts, axis=-1, name=f"split.{index}")
        model.graph.node.insert(list(model.graph.node).index(node), split)
        node.input[0], node.input[1], node.input[2] = parts


def unrotated(model):
    """The operator does not rotate, and RotaryEmbedding does it before."""
    separate(model)
    position_ids(model)
    for index, node in enumerate(nodes_of(model, "GroupQueryAttention")):
        for slot, heads in ((0, 4), (1, 2)):
            turned = f"turned.{index}.{slot}"
            inputs = [node.input[slot], "position_ids", "cos_cache", "sin_cache"]
            rotary = helper.make_node(
                "RotaryEmbedding", inputs, [turned], domain="com.microsoft", num_heads=heads, name=turned
            )
            model.graph.node.insert(list(model.graph.node).index(node), rotary)
            node.input[slot] = turned
        for slot in (7, 8, 9):
            node.input[slot] = ""
        set_attribute(node, "do_rotary", 0)


def shared(model):
    """The second layer has no new keys and values, and reads the cache of the first one."""
    separate(model)
    node = nodes_of(model, "GroupQueryAttention")[1]
    sizes = initializer(model, "no_rows", np.array([0, 32]))
    for made in (
        helper.make_node("Shape", [node.input[0]], ["batch"], end=1, name="batch"),
        helper.make_node("Concat", ["batch", sizes], ["empty_shape"], axis=0, name="empty_shape"),
        helper.make_node("ConstantOfShape", ["empty_shape"], ["empty"], name="empty"),
    ):
        model.graph.node.insert(list(model.graph.node).index(node), made)
    node.input[1:5] = ["empty", "empty", "present.0.key", "present.0.value"]
    for values in (model.graph.input, model.graph.output):
        for value in [value for value in values if ".1." in value.name]:
            values.remove(value)


def shared_window(model):
    """Only the layer that reads the cache of another one has a window."""
    shared(model)
    windows(model)


def sinks(model):
    """A part of the weights of each head goes to a score without a value."""
    name = initializer(model, "sinks", np.array([1.5, -2.0, 0.25, 4.0], np.float32))
    for node in nodes_of(model, "GroupQueryAttention"):
        node.input[11] = name


def activations(model):
    """Replaces the gates by the operators into which ONNX Runtime's optimiser fuses activations."""
    kinds = [("QuickGelu", []), ("FastGelu", [])]
    for (op_type, more), node in zip(kinds, nodes_of(model, "Sigmoid"), strict=True):
        node.op_type, node.domain = op_type, "com.microsoft"
        node.input.extend(more)


def transposed_product(model):
    """The last product reads its weights transposed and scaled."""
    product = nodes_of(model, "MatMul")[-1]
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == product.input[1])
    turned = np.ascontiguousarray(numpy_helper.to_array(weights).T)
    product.op_type, product.domain = "FusedMatMul", "com.microsoft"
    product.input[1] = initializer(model, "turned", turned)
    set_attribute(product, "transB", 1)
    set_attribute(product, "alpha", 0.5)


EDITS = {
    "as-exported": lambda model: None,
    "window": attributes(local_window_size=3),
    "window-of-one": attributes(local_window_size=1),
    "windows": windows,
    "interleaved": attributes(rotary_interleaved=1),
    "scale": attributes(scale=0.5),
    "default-scale": attributes(scale=0.0),
    "lengths-by-mask": lengths_by_mask,
    "position-ids": position_ids,
    "separate": separate,
    "unrotated": unrotated,
    "shared": shared,
    "shared-window": shared_window,
    "sinks": sinks,
    "smooth-softmax": attributes(smooth_softmax=1, local_window_size=5),
    "activations": activations,
    "transposed-product": transposed_product,
}


@pytest.fixture(scope="module", params=EDITS)
def both(request, tmp_path_factory):
    """Returns an edited decoder, the converted one, and the results of the edited one."""
    folder = tmp_path_factory.mktemp(request.param)
    model = onnx.load(GROUPED)
    EDITS[request.param](model)
    onnx.save(model, folder / "original.onnx")
    converted = convert(folder / "original.onnx", folder / "model.onnx", SLOTS)
    return folder / "original.onnx", converted, runs.references(folder / "original.onnx")


def test_only_standard_operators_are_left(both):
    _, converted, _ = both
    model = onnx.load(converted)
    assert {node.domain for node in model.graph.node} == {""}
    assert "SimplifiedLayerNormalization" not in {node.op_type for node in model.graph.node}
    assert [entry.domain for entry in model.opset_import] == [""]
    onnx.checker.check_model(model, full_check=True)
    kvscatter("inspect", "--target", "tensorrt", converted)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["short-first", "long-first"])
def test_prompts_chunks_and_ragged_decode(both, order):
    _, converted, references = both
    batch = Batch(converted, [references[each] for each in order])
    lengths = np.array([LENGTHS[each] for each in order])
    while (batch.read < lengths).any():
        batch.step(tuple(np.minimum(4, lengths - batch.read).tolist()), 0)
    batch.step((2, 2, 2), 1)
    while batch.read.max() < SLOTS:
        batch.step((1, 1, 1), 0)


def test_padding_on_the_left(both):
    original, converted, references = both
    runs.left_padded(original, converted, references, 1)


def test_a_cap_needs_an_onnx_runtime_that_caps_before_it_masks(tmp_path):
    model = onnx.load(GROUPED)
    attributes(softcap=2.0)(model)
    onnx.save(model, tmp_path / "original.onnx")
    converted = convert(tmp_path / "original.onnx", tmp_path / "model.onnx", SLOTS)
    least = {entry.key: entry.value for entry in onnx.load(converted).metadata_props}
    assert least["kvscatter.least_onnxruntime"] == "1.27"
    batch = Batch(converted, runs.references(tmp_path / "original.onnx"))
    batch.step(LENGTHS, 0)
    while batch.read.max() < SLOTS:
        batch.step((1, 1, 1), 0)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (attributes(causal=0), "causal"),
        (attributes(local_window_size=0), "local_window_size"),
        (attributes(unheard_of=1), "unheard_of"),
    ],
    ids=["not-causal", "empty-window", "unknown"],
)
def test_a_node_without_a_standard_form_is_named(tmp_path, edit, words):
    model = onnx.load(GROUPED)
    edit(model)
    onnx.save(model, tmp_path / "original.onnx")
    out = tmp_path / "model.onnx"
    done = kvscatter("convert", tmp_path / "original.onnx", "-o", out, "--max-seq", SLOTS, exit_code=2)
    assert words in done.stderr
    assert "/model/layers.0/attn/GroupQueryAttention" in done.stderr
    assert not out.exists()
