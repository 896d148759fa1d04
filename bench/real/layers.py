"""Models of layers of attention alone, as an exporter writes them for ONNX Runtime."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Heads:
    """The heads of a layer."""

    query: int
    stored: int
    size: int


def layers(heads: Heads, count: int, scale: float | None = None) -> onnx.ModelProto:
    """Returns a model that sums the results of layers.

    Each layer multiplies the rows by another factor, because ONNX Runtime would compute equal ones once. Then it is one
    `GroupQueryAttention`. With a scale, its caches have int8 codes with this scale, and else float32.
    """
    code = TensorProto.FLOAT if scale is None else TensorProto.INT8
    constants = {"axis": np.array([1]), "one": np.array([1]), "first": np.array(1)}
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["lengths"], keepdims=0),
        helper.make_node("Sub", ["lengths", "one"], ["before"]),
        helper.make_node("Cast", ["before"], ["last"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["longest"]),
        helper.make_node("Cast", ["longest"], ["total"], to=TensorProto.INT32),
    ]
    scales, attributes = [], {}
    if scale is not None:
        constants["scale"] = np.array([scale], np.float32)
        scales = [*[""] * 5, "scale", "scale"]
        attributes = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    inputs = [value("inputs_embeds", TensorProto.FLOAT, ["batch", "tokens", width(heads)])]
    inputs.append(value("attention_mask", TensorProto.INT64, ["batch", "all"]))
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "tokens", heads.query * heads.size])]
    for layer in range(count):
        pasts, presents = (
            [f"{when}.{layer}.{part}" for part in ("key", "value")] for when in ("past", "present")
        )
        inputs += [value(name, code, ["batch", heads.stored, "past", heads.size]) for name in pasts]
        outputs += [value(name, code, ["batch", heads.stored, "all", heads.size]) for name in presents]
        constants[f"factor.{layer}"] = np.array([1 - layer / (2 * count)], np.float32)
        nodes.append(helper.make_node("Mul", ["inputs_embeds", f"factor.{layer}"], [f"rows.{layer}"]))
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [f"rows.{layer}", "", "", *pasts, "last", "total", *scales],
                [f"result.{layer}", *presents],
                domain=MICROSOFT,
                num_heads=heads.query,
                kv_num_heads=heads.stored,
                **attributes,
            )
        )
    nodes.append(helper.make_node("Sum", [f"result.{layer}" for layer in range(count)], ["logits"]))
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "layers", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def width(heads: Heads) -> int:
    """Returns the elements that a token has for the queries, keys and values together."""
    return (heads.query + 2 * heads.stored) * heads.size


def value(name: str, code: int, shape: list[Any]) -> onnx.ValueInfoProto:
    """Returns the description of an input or output."""
    return helper.make_tensor_value_info(name, code, shape)
