"""A circular write and attention over the ring, compared with a linear cache."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import models
from support.sessions import PROVIDER, assignment, plugin

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WINDOW, WIDTH, BATCH, SIZE = 20, 3, 2, 8
RING = WINDOW - 1 + WIDTH
LINEAR = 4 * RING


def layer(slots: int, mode: str, code: int) -> bytes:
    """Returns a layer that writes caches of ``slots`` slots and reads a window of them. Slot s is visible to the query
    at position q if (q - s) mod slots <= min(q, WINDOW - 1)."""
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["write_indices", "one"], ["starts"]),
        node("Add", ["starts", "steps"], ["positions"]),
        node("Unsqueeze", ["positions", "one_three"], ["rows"]),
        node("Sub", ["rows", "slots"], ["distances"]),
        node("Mod", ["distances", "capacity"], ["ages"]),
        node("Min", ["rows", "most"], ["oldest"]),
        node("LessOrEqual", ["ages", "oldest"], ["mask"]),
        node("Add", ["write_indices", "width"], ["ends"]),
        node("Min", ["ends", "capacity"], ["lengths"]),
        *(
            node("TensorScatter", [f"past_{part}", f"new_{part}", "write_indices"], [part], mode=mode, axis=2)
            for part in ("key", "value")
        ),
        node("Attention", ["query", "key", "value", "mask", "", "", "lengths"], ["y"]),
    ]
    cache, new = [BATCH, 2, slots, SIZE], [BATCH, 2, None, SIZE]
    inputs = {"query": [BATCH, 4, None, SIZE]}
    inputs |= {f"past_{part}": cache for part in ("key", "value")}
    inputs |= {f"new_{part}": new for part in ("key", "value")}
    indices = {"write_indices": [BATCH], "steps": [None], "width": [1]}
    graph = helper.make_graph(
        nodes,
        "layer",
        [models.value(name, code, shape) for name, shape in inputs.items()]
        + [models.value(name, INT64, shape) for name, shape in indices.items()],
        [models.value("y", code), models.value("key", code, cache), models.value("value", code, cache)],
    )
    constants = {
        "slots": np.arange(slots),
        "capacity": [slots],
        "most": [WINDOW - 1],
        "one": [1],
        "one_three": [1, 3],
    }
    graph.initializer.extend(
        numpy_helper.from_array(np.array(array, dtype=np.int64), name) for name, array in constants.items()
    )
    imports = [helper.make_opsetid("", 24)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11).SerializeToString()


class Layer:
    """A session of a layer with its caches, which contain NaN where nothing was written."""

    def __init__(self, slots: int, mode: str, code: int):
        self.session = plugin(layer(slots, mode, code))
        assert sorted(assignment(self.session)[PROVIDER]) == ["Attention", "TensorScatter", "TensorScatter"]
        element = helper.tensor_dtype_to_np_dtype(code)
        self.caches = [np.full((BATCH, 2, slots, SIZE), np.nan, element) for _ in range(2)]

    def step(self, given: dict[str, np.ndarray], starts: np.ndarray) -> np.ndarray:
        width = given["query"].shape[2]
        feed = given | dict(zip(["past_key", "past_value"], self.caches, strict=True))
        feed |= {"write_indices": starts, "steps": np.arange(width), "width": np.array([width])}
        y, *self.caches = self.session.run(None, feed)
        return y


@pytest.mark.parametrize("code", [FLOAT, TensorProto.FLOAT16], ids=["float", "float16"])
def test_a_ring_gives_the_bits_of_a_linear_cache(code):
    """Both are fed the same tokens over three turns of the ring, one to three in a step. The second sample is ahead."""
    random = np.random.default_rng(5)
    ring, linear = Layer(RING, "circular", code), Layer(LINEAR, "linear", code)
    starts = np.array([0, 0])
    while starts[0] < 3 * RING:
        if starts[0] == starts[1] == 9:
            starts[0] = 0
        width = WIDTH if starts[1] < 9 else random.integers(1, WIDTH + 1)
        numbers = {
            name: random.uniform(-1, 1, (BATCH, heads, width, SIZE)).astype(ring.caches[0].dtype)
            for name, heads in [("query", 4), ("new_key", 2), ("new_value", 2)]
        }
        of_ring, of_linear = ring.step(numbers, starts), linear.step(numbers, starts)
        assert np.isfinite(of_ring).all(), (starts, width)
        assert of_ring.tobytes() == of_linear.tobytes(), (starts, width)
        starts = starts + width
