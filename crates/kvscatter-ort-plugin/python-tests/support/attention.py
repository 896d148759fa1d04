"""Models of one Attention node, and the oracle's cases as tensors."""

import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import helper

from support.elements import BY_NAME, Element
from support.models import value
from support.tensors import Tensor

INPUTS = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
DTYPES = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "bool": np.bool_}
UNITS = {"float": -23, "float16": -10, "bfloat16": -7}
SMALLEST = {"float": -149, "float16": -24, "bfloat16": -133}


def model(
    inputs: dict[str, int],
    outputs: list[str],
    opset: int,
    shapes: dict | None = None,
    types=None,
    **attributes,
) -> bytes:
    """Returns a model of one Attention node. ``inputs`` maps the names that it has to types. ``shapes`` has
    the declared shapes, and ``types`` the types of outputs that are not those of their inputs."""
    shapes = shapes or {}

    def names(all_names, given):
        names = [name if name in given else "" for name in all_names]
        while not names[-1]:
            names.pop()
        return names

    types = {"Y": inputs["Q"], "present_key": inputs["K"], "present_value": inputs["V"]} | (types or {})
    node = helper.make_node("Attention", names(INPUTS, inputs), names(OUTPUTS, outputs), **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [value(name, code, shapes.get(name)) for name, code in inputs.items()],
        [value(name, types.get(name, inputs["Q"])) for name in outputs],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    # This is the first version with all types, and 1.24.4 reads no later version.
    made.ir_version = 11
    return made.SerializeToString()


@dataclass
class Case:
    """A call of the oracle."""

    name: str
    element: Element
    opset: int
    attributes: dict
    inputs: dict[str, np.ndarray]
    refusal: str | None
    # The outputs in float64, without rounding.
    expected: dict[str, np.ndarray]

    def model(self, outputs: list[str], shaped: bool = False) -> bytes:
        """Returns the model, with the shapes of the case if they are to be declared."""
        types = {name: tensor.element.code for name, tensor in self.tensors().items()}
        shapes = {name: array.shape for name, array in self.inputs.items()} if shaped else {}
        return model(types, outputs, self.opset, shapes, **self.attributes)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the inputs in guarded memory."""
        return {name: tensor(array) for name, array in self.inputs.items()}

    def outputs(self, names: list[str]) -> dict[str, Tensor]:
        """Returns memory for the outputs, which contains garbage."""
        return {name: Tensor.garbage(self.element, self.expected[name].shape) for name in names}

    def check(self, name: str, got: Tensor) -> None:
        """Compares an output with the oracle's, and fails if a byte beside it was written."""
        got.check_guards()
        made, expected = numbers(got), self.expected[name]
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = expected.astype(DTYPES[self.element.name]).astype(np.float64)
            error = np.abs(made - expected)
        is_same = (made == rounded) | (np.isnan(made) & np.isnan(rounded))
        if name.startswith("present"):
            assert is_same.all(), f"{self.name}: {name}"
            return
        rounding = 0.0 if self.element.name == "float" and name == "Y" else unit(expected, self.element)
        is_close = is_same | (error <= 2e-6 * self.largest(name) + rounding)
        assert is_close.all(), f"{self.name}: {name} differs at {np.argwhere(~is_close)[0]}"

    def largest(self, output: str) -> float:
        """Returns what an error of an output is relative to."""

        def most(*names: str) -> float:
            arrays = [self.inputs[name].astype(np.float64) for name in names if name in self.inputs]
            return max([np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in arrays])

        if output == "Y":
            return most("V", "past_value")
        if self.attributes.get("qk_matmul_output_mode") == 3:
            return 1.0
        size = self.inputs["K"].shape[-1]
        return most("Q") * most("K", "past_key") * size * abs(self.attributes.get("scale", 1.0)) + 1.0


def cases(path: pathlib.Path) -> Iterator[Case]:
    """Returns the cases in a file of ``export-attention-cases``, without those that ONNX cannot express."""
    with path.open() as lines:
        for line in lines:
            fields = json.loads(line)
            if fields["ring_tokens"] is None:
                yield _case(fields)


def _case(fields: dict) -> Case:
    names = ["is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode"]
    names += ["softmax_precision"]
    windows = {name: fields[name] for name in ("left_window_size", "right_window_size") if fields[name] != -1}
    inputs = {}
    for name in INPUTS[:6]:
        field = "mask" if name == "attn_mask" else name.lower()
        if fields[field] is not None:
            kind = "bool" if field == "mask" and fields["mask_type"] == "bool" else fields["element"]
            inputs[name] = array(fields[field], DTYPES[kind])
    if fields["nonpad_kv_seqlen"] is not None:
        inputs["nonpad_kv_seqlen"] = np.array(fields["nonpad_kv_seqlen"], np.int64)
    return Case(
        fields["name"],
        BY_NAME[fields["element"]],
        fields["operator_set"],
        {name: fields[name] for name in names if fields[name] is not None} | windows,
        inputs,
        fields["refusal"],
        {name: array(fields[name.lower()], np.float64) for name in OUTPUTS if fields[name.lower()]},
    )


def array(fields: dict, dtype) -> np.ndarray:
    return np.array(fields["data"], np.float64).astype(dtype).reshape(fields["shape"])


def tensor(array: np.ndarray) -> Tensor:
    """Returns a copy of an array in guarded memory."""
    if array.dtype.kind == "i":
        return Tensor.of(array)
    name = next(name for name, dtype in DTYPES.items() if array.dtype == dtype)
    return Tensor(BY_NAME[name], array.shape, array.tobytes())


def numbers(tensor: Tensor) -> np.ndarray:
    """Returns the elements as float64."""
    return tensor.data.view(DTYPES[tensor.element.name]).reshape(tensor.shape).astype(np.float64)


def unit(values: np.ndarray, element: Element) -> np.ndarray:
    """Returns the distance between neighbours of a type around values."""
    finite = np.where(np.isfinite(values), values, 0.0)
    unit = 2.0 ** (np.frexp(finite)[1] - 1 + UNITS[element.name])
    return np.maximum(unit, 2.0 ** SMALLEST[element.name])


def random(shape, seed: int) -> np.ndarray:
    """Returns random numbers in float32 that depend on the seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(q, k, v, lengths=None):
    """Attention of as many query heads as heads of keys, in float64. It is causal if there are lengths."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(q.shape[3])
    if lengths is not None:
        last = np.asarray(lengths)[:, None] - q.shape[2] + np.arange(q.shape[2])
        scores = np.where(np.arange(k.shape[2]) <= last[:, None, :, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
