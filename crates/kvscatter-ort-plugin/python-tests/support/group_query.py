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

# The sizes of the nodes that are not those of a case.
HEADS, KV_HEADS, SIZE, POSITIONS = 4, 2, 16, 2048
COUNTS = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}


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


def types(arrays: dict[str, np.ndarray]) -> dict[str, int]:
    """Returns the types of arrays as ONNX's numbers."""
    return {name: tensor(array).element.code for name, array in arrays.items()}


def feed(lengths, tokens: int = 1, slots: int | None = 16, total: int | None = None, **options) -> dict:
    """Returns random inputs of a call, after which the samples have these lengths. ``slots`` is the number of slots of
    the past, or None for the largest length without the new tokens. The options are those of :func:`rows`."""
    batch, longest = len(lengths), max(lengths)
    made = rows(batch, tokens, **options)
    random = np.random.default_rng(options.get("seed", 24) + 1)
    shape = (batch, KV_HEADS, longest - tokens if slots is None else slots, SIZE)
    dtype = made["query"].dtype
    made |= {name: random.standard_normal(shape).astype(dtype) for name in PRESENTS.values()}
    made["seqlens_k"] = np.array(lengths, np.int32) - 1
    made["total_sequence_length"] = np.array([longest if total is None else total], np.int32)
    return made


def rows(batch: int, tokens: int, packed=True, dtype=np.float32, seed=24) -> dict:
    """Returns random queries, keys and values, and the angles of all positions."""
    random = np.random.default_rng(seed)
    widths = {"query": HEADS, "key": KV_HEADS, "value": KV_HEADS}
    if packed:
        widths = {"query": sum(widths.values())}
    made = {name: random.standard_normal((batch, tokens, heads * SIZE)) for name, heads in widths.items()}
    angles = np.arange(POSITIONS)[:, None] * 10000.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
    made |= {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    return {name: array.astype(dtype) for name, array in made.items()}


def values(tensor: Tensor) -> np.ndarray:
    """Returns a copy of the elements."""
    return tensor.data.view(DTYPES[tensor.element.name]).reshape(tensor.shape).copy()


def memory(arrays: dict[str, np.ndarray], in_place: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the inputs and the outputs of a call in guarded memory."""
    inputs = {name: tensor(array) for name, array in arrays.items()}
    query, past = inputs["query"], inputs["past_key"]
    output = Tensor.garbage(query.element, (*query.shape[:2], HEADS * SIZE))
    if in_place:
        return inputs, {"output": output} | {name: inputs[cache] for name, cache in PRESENTS.items()}
    slots = max(past.shape[2], int(arrays["total_sequence_length"].reshape(-1)[0]))
    shape = (*past.shape[:2], slots, past.shape[3])
    return inputs, {"output": output} | {name: Tensor.garbage(past.element, shape) for name in PRESENTS}


@dataclass
class Case:
    """A call of the operator."""

    name: str
    attributes: dict
    inputs: dict[str, np.ndarray]
    # The output in float64, without rounding. The caches after the call, rounded to their type.
    expected: dict[str, np.ndarray]

    def model(self, outputs=tuple(OUTPUTS[:3]), shaped: bool = False) -> bytes:
        """Returns the model, with the shapes of the case if they are to be declared."""
        arrays = self.inputs | self.expected
        shapes = {name: array.shape for name, array in arrays.items()} if shaped else {}
        return model(types(self.inputs), outputs, shapes, **self.attributes)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the inputs in guarded memory."""
        return {name: tensor(array) for name, array in self.inputs.items()}

    def element(self, output: str) -> Element:
        """Returns the type of an output."""
        dtype = self.inputs[PRESENTS.get(output, "query")].dtype
        return BY_NAME[next(name for name, known in DTYPES.items() if known == dtype)]

    def outputs(self) -> dict[str, Tensor]:
        """Returns memory for all outputs, which contains garbage."""
        return {
            name: Tensor.garbage(self.element(name), array.shape) for name, array in self.expected.items()
        }

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
        if self.is_first and self.has_own_rows:
            return np.full_like(self.lengths, self.tokens)
        return self.lengths

    def painted(self) -> "Case":
        """Returns the same case with NaN in all slots of the past that the call must not read."""
        if not self.has_room:
            return self
        inputs = {name: self._filled(self.inputs[name], np.nan) for name in PRESENTS.values()}
        expected = {name: self._filled(self.expected[name], np.nan) for name in PRESENTS}
        return Case(self.name, self.attributes, self.inputs | inputs, self.expected | expected)

    def check(self, outputs, in_place: bool, tolerance: float = 2e-6, has_padding: bool = True) -> None:
        """Compares the outputs with the expected ones, and fails if a byte beside them was written. The caches must
        have the same bits."""
        self.check_output(outputs["output"], tolerance, has_padding)
        for name in PRESENTS:
            expected = self.expected[name]
            if not in_place:
                expected = self._filled(expected, 0.0)
            same(outputs[name], expected.astype(DTYPES[self.element(name).name]).tobytes())

    def check_output(self, got: Tensor, tolerance: float = 2e-6, has_padding: bool = True) -> None:
        """Compares the results of the queries, and those of padding only with ``has_padding``."""
        got.check_guards()
        made, expected = numbers(got), self.expected["output"]
        error = np.abs(made - expected)
        rounding = 0.0 if got.element.name == "float" else unit(expected, got.element)
        is_close = error <= tolerance * self.largest() + rounding
        if self.is_first and not has_padding:
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
