"""Plants faults into a decoder with a static cache. Each is like one seen in an exporter or a runtime."""

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper


def scatters(model: ModelProto) -> list[NodeProto]:
    """Returns the nodes that write caches, in the graph's order."""
    return [node for node in model.graph.node if node.op_type == "TensorScatter"]


def insert_before(model: ModelProto, node: NodeProto, *nodes: NodeProto) -> None:
    """Inserts nodes before a node that reads their outputs."""
    place = next(at for at, each in enumerate(model.graph.node) if each is node or each == node)
    for new in reversed(nodes):
        model.graph.node.insert(place, new)


def constant(model: ModelProto, name: str, value: np.ndarray) -> str:
    """Adds an initializer."""
    model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def after(model: ModelProto, scatter: NodeProto, *nodes: NodeProto) -> None:
    """Inserts nodes after a scatter: the first reads `scattered`, the last makes the present."""
    present = scatter.output[0]
    scatter.output[0] = "scattered"
    nodes[-1].output[0] = present
    place = next(at for at, each in enumerate(model.graph.node) if each == scatter)
    for new in reversed(nodes):
        model.graph.node.insert(place + 1, new)


def index_off_by_one(model: ModelProto) -> None:
    """Writes every row one slot after the slot that its index names."""
    one = constant(model, "one", np.array(1, np.int64))
    first, *_ = found = scatters(model)
    add = helper.make_node("Add", [first.input[2], one], ["next_slot"])
    insert_before(model, first, add)
    for scatter in found:
        scatter.input[2] = "next_slot"


def copied_by_identity(model: ModelProto) -> None:
    """Makes the present a copy of the written cache, unless the runtime removes the copy."""
    after(model, scatters(model)[0], helper.make_node("Identity", ["scattered"], [""]))


def copied_by_multiplying(model: ModelProto) -> None:
    """Makes a copy with the same values, which no runtime can remove."""
    one = constant(model, "one", np.array(1, np.float32))
    after(model, scatters(model)[0], helper.make_node("Mul", ["scattered", one], [""]))


def slot_clobbered(model: ModelProto) -> None:
    """Writes the newest row into slot 0 as well."""
    scatter = scatters(model)[0]
    axis = next((a.i for a in scatter.attribute if a.name == "axis"), -2)
    bounds = [
        constant(model, f"slice_{name}", np.array([at], np.int64)) for name, at in [("from", 0), ("to", 1)]
    ]
    axes = constant(model, "slice_axis", np.array([axis], np.int64))
    row = helper.make_node("Slice", [scatter.input[1], *bounds, axes], ["first_row"])
    zero = helper.make_node("Sub", [scatter.input[2], scatter.input[2]], ["slot_zero"])
    again = helper.make_node("TensorScatter", ["scattered", "first_row", "slot_zero"], [""], axis=axis)
    after(model, scatter, row, zero, again)


def negated_twice(model: ModelProto) -> None:
    """Reads and writes the whole cache twice, although the address and the rows are right."""
    scatter = scatters(model)[0]
    there = helper.make_node("Neg", [scatter.input[0]], ["negative"])
    back = helper.make_node("Neg", ["negative"], ["positive"])
    insert_before(model, scatter, there, back)
    scatter.input[0] = "positive"


def nan_in_padding(model: ModelProto) -> None:
    """Makes the rows of padding NaN: tokens at position 0, except the first token of a step."""
    zero, first, one = (
        constant(model, name, np.array(at, np.int64)) for name, at in [("z", 0), ("f", 1), ("o", 1)]
    )
    nan, number = (
        constant(model, name, np.array(at, np.float32)) for name, at in [("nan", np.nan), ("no", 0)]
    )
    found = scatters(model)
    rank = len(next(v for v in model.graph.input if v.name == found[0].input[0]).type.tensor_type.shape.dim)
    axes = constant(model, "row_axes", np.array([2] if rank == 3 else [1, 3], np.int64))
    columns = helper.make_node("CumSum", ["of_ones", first], ["columns"])
    insert_before(
        model,
        model.graph.node[0],
        helper.make_node("Mul", ["position_ids", zero], ["of_zeros"]),
        helper.make_node("Add", ["of_zeros", one], ["of_ones"]),
        columns,
        helper.make_node("Greater", ["columns", one], ["is_later"]),
        helper.make_node("Equal", ["position_ids", zero], ["is_zero"]),
        helper.make_node("And", ["is_later", "is_zero"], ["is_padding"]),
        helper.make_node("Where", ["is_padding", nan, number], ["by_token"]),
        helper.make_node("Unsqueeze", ["by_token", axes], ["by_row"]),
    )
    for index, scatter in enumerate(found):
        insert_before(
            model, scatter, helper.make_node("Add", [scatter.input[1], "by_row"], [f"spoilt_{index}"])
        )
        scatter.input[1] = f"spoilt_{index}"
