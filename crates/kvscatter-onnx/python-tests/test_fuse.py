"""Tests that decoders whose attention becomes one node compute the same in ONNX Runtime.

The decoders are generated. Each has the scale, the cap, the mask or the repeated heads in another place.
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import runs
from support.command import kvscatter
from support.runs import LENGTHS, SLOTS, Batch

HEADS, KV_HEADS, SIZE, VOCABULARY = 4, 2, 8, 64
HIDDEN = HEADS * SIZE

# ONNX Runtime's Attention caps scores before the mask from this version on, as the standard does.
CAPS_BEFORE_MASK = tuple(int(part) for part in ort.__version__.split(".")[:2]) >= (1, 27)


class Graph:
    """The nodes and constants of a decoder while it is built."""

    def __init__(self, dtype):
        self.dtype, self.nodes, self.constants = dtype, [], []
        self.random = np.random.default_rng(3)

    def __call__(self, op_type, *inputs, out=None, **attributes):
        out = out or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [out], **attributes))
        return out

    def constant(self, value, dtype=None):
        name = f"constant_{len(self.constants)}"
        value = np.asarray(value, dtype or self.dtype)
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def ints(self, *values):
        return self.constant(values, np.int64)

    def weight(self, *shape):
        return self.constant(self.random.standard_normal(shape) / np.sqrt(shape[0]))

    def heads(self, value, count):
        split = self("Reshape", value, self.ints(0, 0, count, SIZE))
        return self("Transpose", split, perm=[0, 2, 1, 3])

    def repeated(self, value):
        apart = self("Unsqueeze", value, self.ints(2))
        wide = self("Expand", apart, self.ints(1, 1, HEADS // KV_HEADS, 1, 1))
        return self("Reshape", wide, self.ints(0, HEADS, -1, SIZE))


def by_sum(graph, scores):
    return graph("Add", scores, "bias")


def by_choice(graph, scores):
    return graph("Where", "visible", scores, graph.constant(np.finfo(graph.dtype).min))


def by_floor(graph, scores):
    return graph("Max", by_sum(graph, scores), graph.constant(np.finfo(graph.dtype).min))


def slopes(graph, *shape):
    return graph.constant(np.reshape([0.5, 0.25, 0.15, 0.06], shape))


def as_float(graph, value):
    return graph("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(graph.dtype)))


def by_slot(graph, scores):
    """Adds a multiple of the slot of each head, and then the mask."""
    bias = graph("Mul", slopes(graph, HEADS, 1, 1), as_float(graph, "slots"))
    return by_sum(graph, graph("Add", scores, bias))


def by_distance(graph, scores):
    """Adds a multiple of the distance from the last slot, with the mask in the same tensor."""
    distance = as_float(graph, graph("Sub", "slots", "total"))
    bias = graph("Mul", slopes(graph, HEADS, 1, 1), distance)
    low = graph.constant(np.finfo(graph.dtype).min)
    return graph("Add", scores, graph("Where", "visible", bias, low))


def by_token(graph, scores):
    """Adds a multiple of the number of real tokens to scores of [batch * heads, tokens, slots]."""
    counts = graph("CumSum", "attention_mask", graph.constant(1, np.int64))
    counts = as_float(graph, graph("Unsqueeze", counts, graph.ints(1)))
    new = graph("Shape", scores, start=2)
    merged = graph("Concat", graph.ints(-1), new, axis=0)
    rows = graph("Concat", graph.ints(-1, 1), graph("Shape", scores, start=3), axis=0)
    bias = graph("Reshape", graph("Mul", slopes(graph, HEADS, 1), counts), rows)
    biased = graph("Add", graph("Reshape", scores, merged), bias)
    apart = graph("Concat", graph.ints(-1, HEADS), new, axis=0)
    return by_choice(graph, graph("Reshape", biased, apart))


def by_slot_scaled(graph, scores):
    """Scales the biased scores."""
    bias = graph("Mul", slopes(graph, HEADS, 1, 1), as_float(graph, "slots"))
    return by_sum(graph, graph("Mul", graph("Add", scores, bias), graph.constant(0.5)))


def capped(graph, scores):
    bent = graph("Tanh", graph("Div", scores, graph.constant(1.5)))
    return graph("Mul", bent, graph.constant(1.5))


def of_repeated_heads(graph, query, key, value):
    return graph("Attention", query, graph.repeated(key), graph.repeated(value), "visible", scale=0.25)


def of_shared_heads(graph, query, key, value):
    return graph("Attention", query, key, value, "bias", softcap=1.5 if CAPS_BEFORE_MASK else 0.0)


def of_rank_3(graph, query, key, value):
    rows = [graph("Transpose", it, perm=[0, 2, 1, 3]) for it in (query, key, value)]
    rows = [graph("Reshape", it, graph.ints(0, 0, -1)) for it in rows]
    flat = graph("Attention", *rows, "visible", q_num_heads=HEADS, kv_num_heads=KV_HEADS)
    return graph.heads(flat, HEADS)


def of_heads_in_another_order(graph, query, key, value):
    """Repeats all heads in a row. The node keeps reading the copy."""
    copies = []
    for cache in (key, value):
        wide = graph("Expand", graph("Unsqueeze", cache, graph.ints(1)), graph.ints(1, 2, 1, 1, 1))
        copies.append(graph("Reshape", wide, graph.ints(0, HEADS, -1, SIZE)))
    return graph("Attention", query, *copies, "visible")


def decoder(
    dtype, queries=1.0, keys=1.0, scores=1.0, cap=False, mask=by_sum, layers=2, attend=None
) -> onnx.ModelProto:
    """Makes a decoder of two layers with growing caches and grouped heads.

    Its attention is separate nodes, or what ``attend`` makes of queries and caches.
    """
    graph = Graph(dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    past = graph("Squeeze", graph("Shape", "past_key_values.0.key", start=2, end=3), graph.ints(0))
    new = graph("Squeeze", graph("Shape", "input_ids", start=1, end=2), graph.ints(0))
    total = graph("Add", past, new, out="total")
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    column = graph("Unsqueeze", graph("Range", past, total, one), graph.ints(-1))
    causal = graph("LessOrEqual", graph("Range", zero, total, one, out="slots"), column)
    real = graph("Unsqueeze", graph("Cast", "attention_mask", to=TensorProto.BOOL), graph.ints(1, 2))
    graph("And", causal, real, out="visible")
    low = graph.constant(np.finfo(dtype).min)
    graph("Where", "visible", graph.constant(0), low, out="bias")
    words = graph("Gather", graph.weight(VOCABULARY, HIDDEN), "input_ids")
    hidden = graph("Add", words, graph("Gather", graph.weight(4 * SLOTS, HIDDEN), "position_ids"))
    caches = []
    for layer in range(layers):
        rows = graph("Tanh", hidden)
        query = graph.heads(graph("MatMul", rows, graph.weight(HIDDEN, HIDDEN)), HEADS)
        key, value = (
            graph(
                "Concat",
                f"past_key_values.{layer}.{part}",
                graph.heads(graph("MatMul", rows, graph.weight(HIDDEN, KV_HEADS * SIZE)), KV_HEADS),
                out=f"present.{layer}.{part}",
                axis=2,
            )
            for part in ("key", "value")
        )
        caches += [f"{layer}.key", f"{layer}.value"]
        if attend:
            attended = attend(graph, query, key, value)
        else:
            key = graph("Transpose", graph.repeated(key), perm=[0, 1, 3, 2])
            factors = {}
            for name, tensor, factor in (("query", query, queries), ("key", key, keys)):
                factors[name] = graph("Mul", tensor, graph.constant(factor)) if factor != 1 else tensor
            products = graph("MatMul", factors["query"], factors["key"])
            products = graph("Div", products, graph.constant(1 / scores)) if scores != 1 else products
            products = capped(graph, products) if cap else products
            weights = graph("Softmax", mask(graph, products), axis=-1)
            attended = graph("MatMul", weights, graph.repeated(value))
        flat = graph("Reshape", graph("Transpose", attended, perm=[0, 2, 1, 3]), graph.ints(0, 0, HIDDEN))
        hidden = graph("Add", hidden, graph("MatMul", flat, graph.weight(HIDDEN, HIDDEN)))
    graph("MatMul", hidden, graph.weight(HIDDEN, VOCABULARY), out="logits")

    def info(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [info(name, TensorProto.INT64, "batch", "tokens") for name in ("input_ids", "position_ids")]
    inputs.append(info("attention_mask", TensorProto.INT64, "batch", "all"))
    inputs += [info(f"past_key_values.{name}", element, "batch", KV_HEADS, "past", SIZE) for name in caches]
    outputs = [info("logits", element, "batch", "tokens", VOCABULARY)]
    outputs += [info(f"present.{name}", element, "batch", KV_HEADS, "all", SIZE) for name in caches]
    made = helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.constants)
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 23 if attend else 21)], ir_version=10
    )


FORMS = {
    "scores": {"scores": 0.25},
    "queries": {"queries": 0.25},
    "keys": {"keys": 0.25},
    "both": {"queries": 0.5, "keys": 0.5},
    "everywhere": {"queries": 0.5, "keys": 2.0, "scores": 0.25, "mask": by_choice},
    "capped": {"scores": 0.5, "cap": True},
    "chosen": {"scores": 0.25, "mask": by_choice},
    "floor": {"scores": 0.25, "mask": by_floor},
    "by_slot": {"scores": 0.25, "mask": by_slot},
    "by_distance": {"scores": 0.25, "mask": by_distance},
    "by_token": {"scores": 0.25, "mask": by_token},
    "by_slot_scaled": {"scores": 0.5, "mask": by_slot_scaled},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_one_node_computes_what_many_did(form, dtype, tmp_path):
    original = tmp_path / "original.onnx"
    onnx.save(decoder(dtype, **FORMS[form]), original)
    references = runs.references(original)
    is_capped = FORMS[form].get("cap", False)
    cases = [(("--keep-attention",), 0), (("--onnxruntime", "1.25"), 0 if is_capped else 2)]
    if not is_capped or CAPS_BEFORE_MASK:
        cases.append(((), 2))
    for options, count in cases:
        static = tmp_path / f"static{''.join(options)}.onnx"
        kvscatter("convert", original, "-o", static, "--max-seq", SLOTS, *options)
        onnx.checker.check_model(static, full_check=True)
        nodes = [node.op_type for node in onnx.load(static).graph.node]
        assert nodes.count("Attention") == count
        assert nodes.count("Softmax") == 2 - count
        assert nodes.count("Expand") == (0 if count else 4)
        computes_the_same(original, static, references)


def computes_the_same(original, static, references):
    batch = Batch(static, references)
    batch.step(LENGTHS, 0)
    while batch.read.max() < SLOTS:
        batch.step((1, 1, 1), 0)
    runs.left_padded(original, static, references, 0)
    runs.padded_between(original, static, references)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("attend", [of_repeated_heads, of_shared_heads, of_rank_3, of_heads_in_another_order])
def test_attention_over_concat_reads_static_caches(attend, dtype, tmp_path):
    original, static = tmp_path / "original.onnx", tmp_path / "static.onnx"
    onnx.save(decoder(dtype, attend=attend), original)
    kvscatter("convert", original, "-o", static, "--max-seq", SLOTS)
    onnx.checker.check_model(static, full_check=True)
    nodes = [node for node in onnx.load(static).graph.node if node.op_type == "Attention"]
    reads_caches = attend is not of_heads_in_another_order
    for layer, node in enumerate(nodes):
        whole = [f"present.{layer}.key", f"present.{layer}.value"]
        assert (node.input[1:3] == whole) == reads_caches
        assert node.input[6] == "nonpad_kv_seqlen"
    computes_the_same(original, static, runs.references(original))
