"""Models of a few nodes, with or without the shapes of their inputs."""

import onnx
from onnx import TensorProto, ValueInfoProto, helper

DOMAIN = "com.kvscatter"


def value(name: str, code: int, shape=None) -> ValueInfoProto:
    """Returns an input or output. If it has no shape, only the kernel checks the shape."""
    return helper.make_tensor_value_info(name, code, shape)


def model(nodes, inputs, outputs) -> bytes:
    """Returns a serialized model of operator set 24, which imports our domain."""
    made = helper.make_model(
        helper.make_graph(nodes, "graph", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)],
    )
    # This is the first version with all types, and 1.24.4 reads no later version.
    made.ir_version = 11
    return made.SerializeToString()


def tensor_scatter(
    code: int, past=None, update=None, *, indices: bool = True, domain: str = "", **attributes
) -> bytes:
    """Returns a model of ``present_cache = TensorScatter(past_cache, update, write_indices)``."""
    names = ["past_cache", "update", *["write_indices"][: int(indices)]]
    shapes = {"past_cache": past, "update": update}
    inputs = [value(n, TensorProto.INT64 if n == "write_indices" else code, shapes.get(n)) for n in names]
    node = helper.make_node("TensorScatter", names, ["present_cache"], domain=domain, **attributes)
    return model([node], inputs, [value("present_cache", code, past)])


def custom(op_type: str, inputs: dict, output: str, code: int, **attributes) -> bytes:
    """Returns a model of one node of our domain. ``inputs`` maps names to types, or None if omitted."""
    names = ["" if kind is None else name for name, kind in inputs.items()]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op_type, names, [output], domain=DOMAIN, **attributes)
    values = [value(name, kind) for name, kind in inputs.items() if kind is not None]
    return model([node], values, [value(output, code)])


def with_shapes(serialized: bytes, shapes: dict) -> bytes:
    """Returns the same model with declared shapes of inputs."""
    made = onnx.load_from_string(serialized)
    for place, declared in enumerate(made.graph.input):
        if declared.name in shapes:
            code = declared.type.tensor_type.elem_type
            made.graph.input[place].CopyFrom(value(declared.name, code, shapes[declared.name]))
    return made.SerializeToString()
