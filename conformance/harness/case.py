"""A case in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

DATA = "test_data_set_0"
# The operators that write a cache, with the place of the cache among their inputs.
CACHE = {"TensorScatter": 0, "KVCacheUpdate": 0, "KVCacheOperation": 2}
GUARD, CANARY = 64, 0xA5


class NotPossible(Exception):
    """A runtime raises this if it cannot be asked to write in place."""


@dataclass(frozen=True)
class Case:
    """One call: a model and its inputs, in memory that this call alone uses."""

    name: str
    operator: str
    # The path of the ONNX model.
    model: Path
    # The arrays by the names of the model's inputs, in their order.
    inputs: dict[str, np.ndarray]
    # The operator's inputs in the order of its specification, which are the same arrays. None is an absent input.
    operands: list[np.ndarray | None]
    # The attributes that the operator's node has. Defaults are not filled in.
    attributes: dict[str, Any]
    # The names of the model's outputs.
    outputs: list[str]
    # The name of the input that is the cache, or None for an operator that writes no cache.
    cache_name: str | None

    @property
    def cache(self) -> np.ndarray:
        """Returns the cache."""
        return self.inputs[self.cache_name or ""]


def read_case(job: dict[str, Any]) -> tuple[Case, dict[str, np.ndarray]]:
    """Reads a case into fresh memory with guards, which are returned too."""
    path = job["folder"] / "model.onnx"
    graph = onnx.load(path, load_external_data=False).graph
    node = next(node for node in graph.node if node.op_type == job["operator"])
    inputs, memory = {}, {}
    for number, value in enumerate(graph.input):
        message = onnx.load_tensor(job["folder"] / DATA / f"input_{number}.pb")
        inputs[value.name], memory[value.name] = guarded(numpy_helper.to_array(message))
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    attributes = {
        key: value.decode() if isinstance(value, bytes) else value for key, value in attributes.items()
    }
    operands = [inputs.get(name) for name in node.input]
    place = CACHE.get(job["operator"])
    cache_name = None if place is None else node.input[place]
    outputs = [value.name for value in graph.output]
    return Case(job["name"], job["operator"], path, inputs, operands, attributes, outputs, cache_name), memory


def guarded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a copy between two guards, and the bytes of the guards and the copy."""
    if array.dtype == object:
        return array.copy(), np.full(2 * GUARD, CANARY, np.uint8)
    whole = np.full(array.nbytes + 3 * GUARD, CANARY, np.uint8)
    begin = GUARD + -whole.ctypes.data % GUARD
    whole = whole[begin - GUARD : begin + array.nbytes + GUARD]
    copy = whole[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, whole


def is_guarded(whole: np.ndarray) -> bool:
    """Returns True if no byte of the guards was written."""
    return bool((whole[:GUARD] == CANARY).all() and (whole[-GUARD:] == CANARY).all())
