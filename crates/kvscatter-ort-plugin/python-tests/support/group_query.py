"""Models of one GroupQueryAttention node, and the cases of ``export-group-query-cases`` as tensors."""

import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import helper

from support.attention import DTYPES, array, numbers, tensor, unit
from support.elements import BY_NAME, Element
from support.models import value
from support.tensors import Tensor, same

INPUTS = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
INPUTS += ["cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale"]
INPUTS += ["q_norm_weight", "k_norm_weight", "query_seqlens"]
OUTPUTS = ["output", "present_key", "present_value", "output_qk"]
PRESENTS = {"present_key": "past_key", "present_value": "past_value"}


def model(inputs: dict[str, int], outputs=tuple(OUTPUTS[:3]), shapes=None, **attributes) -> bytes:
    """Returns a model of one node. ``inputs`` maps the names that it has to types, and ``shapes`` has the declared
    shapes."""
    shapes = shapes or {}
    names = [name if name in inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    cache = inputs.get("past_key", inputs["query"])
    types = {name: cache if name in PRESENTS else inputs["query"] for name in outputs}
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [value(name, inputs[name], shapes.get(name)) for name in names if name],
        [value(name, types[name], shapes.get(name)) for name in outputs if name],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets)
    made.ir_version = 10
    return made.SerializeToString()


@dataclass
class Case:
    """A call of the operator."""

    name: str
    attributes: dict
    inputs: dict[str, np.ndarray]
    # The output in float64, without rounding. The caches after the call, rounded to their type.
    expected: dict[str, np.ndarray]

    def model(self, shaped: bool = False) -> bytes:
        """Returns the model, with the shapes of the case if they are to be declared."""
        types = {name: tensor.element.code for name, tensor in self.tensors().items()}
        arrays = self.inputs | self.expected
        shapes = {name: array.shape for name, array in arrays.items()} if shaped else {}
        return model(types, shapes=shapes, **self.attributes)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the inputs in guarded memory."""
        return {name: tensor(array) for name, array in self.inputs.items()}

    def element(self, output: str) -> Element:
        """Returns the type of an output."""
        dtype = self.inputs[PRESENTS.get(output, "query")].dtype
        return BY_NAME[next(name for name, known in DTYPES.items() if known == dtype)]

    def outputs(self) -> dict[str, Tensor]:
        """Returns memory for all outputs, which contains garbage."""
        return {name: Tensor.garbage(self.element(name), array.shape) for name, array in self.expected.items()}

    @property
    def tokens(self) -> int:
        """Returns the number of new tokens of each sample, with padding."""
        return self.inputs["query"].shape[1]

    @property
    def lengths(self) -> np.ndarray:
        """Returns the number of tokens of each sample after the call."""
        return self.inputs["seqlens_k"] + 1

    @property
    def is_first(self) -> bool:
        """Returns whether the call has all tokens."""
        return int(self.inputs["total_sequence_length"].reshape(-1)[0]) == self.tokens

    @property
    def has_own_rows(self) -> bool:
        """Returns whether the call has new keys and values."""
        return "key" not in self.inputs or self.inputs["key"].shape[1] > 0

    @property
    def has_room(self) -> bool:
        """Returns whether the past has a slot for each token, so that it can be the present too."""
        return self.inputs["past_key"].shape[2] == self.expected["present_key"].shape[2]

    def ends(self) -> np.ndarray:
        """Returns the slot of each sample after the last one that the call writes or reads."""
        return np.full_like(self.lengths, self.tokens) if self.is_first and self.has_own_rows else self.lengths

    def painted(self) -> "Case":
        """Returns the same case with NaN in all slots of the past that the call must not read."""
        pasts = {name: self._filled(self.inputs[name], np.nan) for name in PRESENTS.values()}
        presents = {name: self._filled(self.expected[name], np.nan) for name in PRESENTS} if self.has_room else {}
        return Case(self.name, self.attributes, self.inputs | pasts, self.expected | presents)

    def check(self, outputs: dict[str, Tensor], in_place: bool) -> None:
        """Compares the outputs with the expected ones, and fails if a byte beside them was written."""
        self.check_output(outputs["output"])
        for name in PRESENTS:
            expected = self.expected[name]
            if not in_place:
                expected = self._filled(expected, 0.0)
            same(outputs[name], expected.astype(DTYPES[self.element(name).name]).tobytes())

    def check_output(self, got: Tensor, tolerance: float = 2e-6) -> None:
        """Compares the rows of tokens. Those of padding may have any numbers."""
        got.check_guards()
        made, expected = numbers(got), self.expected["output"]
        error = np.abs(made - expected)
        rounding = 0.0 if got.element.name == "float" else unit(expected, got.element)
        is_close = error <= tolerance * self.largest() + rounding
        if self.is_first:
            is_close |= np.arange(self.tokens)[:, None] >= self.lengths[:, None, None]
        assert is_close.all(), f"{self.name}: {np.nanmax(error)}, first at {np.argwhere(~is_close)[0]}"

    def largest(self) -> float:
        """Returns the largest value, which errors of the output are relative to."""
        return np.nanmax(np.abs(self.expected["present_value"]))

    def _filled(self, cache: np.ndarray, number: float) -> np.ndarray:
        """Returns a copy of a cache with a number in all slots after the last one of the call."""
        slots = np.arange(cache.shape[2])[:, None]
        return np.where(slots < self.ends()[:, None, None, None], cache, np.asarray(number, cache.dtype))


def cases(path: pathlib.Path) -> Iterator[Case]:
    """Returns the cases in a file of ``export-group-query-cases``."""
    dtypes = DTYPES | {"int32": np.int32, "int64": np.int64}
    with path.open() as lines:
        for line in lines:
            fields = json.loads(line)
            yield Case(
                fields["name"],
                fields["attributes"],
                {name: array(each, dtypes[each["element"]]) for name, each in fields["inputs"].items()},
                {name: array(each, np.float64) for name, each in fields["outputs"].items()},
            )
