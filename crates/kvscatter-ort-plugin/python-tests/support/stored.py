"""Models of a layer whose caches have another type than its keys and values."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def hadamard(size: int) -> np.ndarray:
    """Returns the orthonormal Hadamard matrix, in blocks of the largest power of two that divides the size."""
    block = np.ones((1, 1))
    while size % (2 * len(block)) == 0:
        block = np.block([[block, block], [block, -block]])
    return np.kron(np.eye(size // len(block)), block / np.sqrt(len(block))).astype("f4")


def stored(
    model: bytes, kind: str, rotated: tuple[str, ...] = ("q", "k"), dequantize: bool = False, change=None
) -> bytes:
    """Returns the model with caches of a half type, or of int8 codes with a scale for each row.

    Codes of the keys and the queries are those of the rotated rows, if ``rotated`` names them. ``dequantize`` reads
    codes with ``DequantizeLinear``. ``change`` may change each new node.
    """
    proto = onnx.load_from_string(model)
    graph = proto.graph
    values = {value.name: value for value in (*graph.input, *graph.output)}
    size = values["past_k"].type.tensor_type.shape.dim[3].dim_value
    constants = {
        "factor": np.float32(1 / 127),
        "least": np.float32(2.0**-100),
        "axes": np.array([-1]),
        "H": hadamard(size),
    }
    nodes, read = [], {}

    def node(*arguments, **attributes):
        made = helper.make_node(*arguments, **attributes)
        if change is not None:
            change(made)
        nodes.append(made)

    def scatter(of, past, update, present):
        made = helper.make_node("TensorScatter", [past, update, of.input[2]], [present])
        made.attribute.extend(of.attribute)
        nodes.append(made)

    for old in graph.node:
        if old.op_type == "Attention":
            query = old.input[0]
            if "q" in rotated and kind == "int8":
                node("MatMul", [query, "H"], ["q_spread"])
                query = "q_spread"
            old.input[:3] = [query, *(read[name] for name in old.input[1:3])]
        if old.op_type != "TensorScatter":
            nodes.append(old)
            continue
        past, rows, name = old.input[0], old.input[1], old.output[0][-1]
        present, read[old.output[0]] = old.output[0], f"{name}_read"
        if kind != "int8":
            node("Cast", [rows], [f"{name}_half"], to=HALVES[kind])
            scatter(old, past, f"{name}_half", present)
            node("Cast", [present], [f"{name}_read"], to=TensorProto.FLOAT)
            for value in (past, present):
                values[value].type.tensor_type.elem_type = HALVES[kind]
            continue
        if name in rotated:
            node("MatMul", [rows, "H"], [f"{name}_spread"])
            rows = f"{name}_spread"
        node("Abs", [rows], [f"{name}_abs"])
        node("ReduceMax", [f"{name}_abs", "axes"], [f"{name}_most"], keepdims=1)
        node("Mul", [f"{name}_most", "factor"], [f"{name}_factored"])
        node("Max", [f"{name}_factored", "least"], [f"{name}_scale"])
        quantized = {"axis": 3, "block_size": size, "output_dtype": TensorProto.INT8}
        node("QuantizeLinear", [rows, f"{name}_scale"], [f"{name}_codes"], **quantized)
        scatter(old, past, f"{name}_codes", present)
        scatter(old, f"past_{name}_scale", f"{name}_scale", f"present_{name}_scale")
        if dequantize:
            node(
                "DequantizeLinear",
                [present, f"present_{name}_scale"],
                [f"{name}_read"],
                axis=3,
                block_size=size,
            )
        else:
            node("Cast", [present], [f"{name}_float"], to=TensorProto.FLOAT)
            node("Mul", [f"{name}_float", f"present_{name}_scale"], [f"{name}_read"])
        for value, of, add in (
            (past, f"past_{name}_scale", graph.input),
            (present, f"present_{name}_scale", graph.output),
        ):
            scale = add.add()
            scale.CopyFrom(values[value])
            scale.name = of
            if add is graph.input:
                scale.type.tensor_type.shape.dim[3].dim_value = 1
            values[value].type.tensor_type.elem_type = TensorProto.INT8
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for made in nodes for name in made.input}
    made = (numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    graph.initializer.extend(tensor for tensor in made if tensor.name in used)
    return proto.SerializeToString()


def codes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes and the scales of rows, by the rule of the format."""
    scales = np.maximum(np.abs(rows).max(-1, keepdims=True) * np.float32(1 / 127), np.float32(2.0**-100))
    return np.rint(rows / scales).astype("i1"), scales
