"""Decoders in ONNX Runtime: exported ones with growing caches, and converted ones with caches in place.

This module does not depend on kvscatter. It tells inputs and outputs apart by the names that the exporters of
the checked-in models gave them.
"""

import pathlib

import numpy as np
import onnx
import onnxruntime as ort

ort.set_default_logger_severity(4)

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


def session(model: pathlib.Path) -> ort.InferenceSession:
    """Makes a session with one thread, so that equal runs give the same bits."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def present_of(past: str) -> str:
    """Returns the output that an exporter pairs with an input."""
    return past.replace("past_key_values.", "present.")


def grouped_queries(model: pathlib.Path) -> list[onnx.NodeProto]:
    """Returns the nodes of a model that write their caches themselves."""
    nodes = onnx.load(model, load_external_data=False).graph.node
    return [node for node in nodes if node.op_type == "GroupQueryAttention"]


def head_size(model: pathlib.Path) -> int:
    """Returns the head size of a model that does not declare it, from the declared result of attention."""
    node = grouped_queries(model)[0]
    heads = next(attribute.i for attribute in node.attribute if attribute.name == "num_heads")
    declared = onnx.load(model, load_external_data=False).graph.value_info
    result = next(value for value in declared if value.name == node.output[0])
    return result.type.tensor_type.shape.dim[-1].dim_value // heads


class Decoder:
    """The common part of both kinds of decoder: a session, its caches and its other inputs."""

    def __init__(self, model: pathlib.Path):
        self.session = session(model)
        inputs = {node.name: node for node in self.session.get_inputs()}
        self.pasts = {name: node for name, node in inputs.items() if name.startswith("past_key_values.")}
        self.others = set(inputs) - set(self.pasts)
        assert self.pasts, f"{model} has no input that is called past_key_values"
        self.dtype = DTYPES[next(iter(self.pasts.values())).type]

    def feeds(self, ids, mask, positions, **more) -> dict[str, np.ndarray]:
        """Returns those of the given inputs that the model has."""
        given = dict(input_ids=ids, attention_mask=mask, position_ids=positions, **more)
        return {name: value for name, value in given.items() if name in self.others}


class Growing(Decoder):
    """The model as it was exported. Every step returns longer caches."""

    def __init__(self, model: pathlib.Path):
        super().__init__(model)
        sizes = {node.shape[3] for node in self.pasts.values()}
        self.size = head_size(model) if any(isinstance(size, str) for size in sizes) else None

    def start(self, batch: int) -> None:
        """Empties the caches."""
        self.caches = {}
        for name, node in self.pasts.items():
            _, heads, _, size = node.shape
            self.caches[name] = np.zeros((batch, heads, 0, self.size or size), self.dtype)

    def step(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Returns logits of [batch, tokens, vocabulary]. `mask` covers the past and the new tokens."""
        feeds = self.feeds(ids, mask, positions) | self.caches
        outputs = ["logits", *map(present_of, self.caches)]
        logits, *presents = self.session.run(outputs, feeds)
        self.caches = dict(zip(self.caches, presents, strict=True))
        return logits


class Static(Decoder):
    """A converted model. The present is bound to the past's memory, which this object owns."""

    def __init__(self, model: pathlib.Path, batch: int, paint):
        super().__init__(model)
        self.values = {}
        for index, (name, node) in enumerate(self.pasts.items()):
            shape = (batch, *node.shape[1:])
            painted = np.broadcast_to(paint(index, shape), shape).astype(DTYPES[node.type])
            self.values[name] = ort.OrtValue.ortvalue_from_numpy(painted, "cpu")
        self.slots = node.shape[2]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns copies of the whole caches by the names of their pasts."""
        return {name: value.numpy().copy() for name, value in self.values.items()}

    def step(self, ids, mask, positions, write_indices) -> np.ndarray:
        """Returns logits of [batch, tokens, vocabulary]. The caches change in place."""
        lengths_after = write_indices + ids.shape[1]
        feeds = self.feeds(ids, mask, positions, write_indices=write_indices, nonpad_kv_seqlen=lengths_after)
        assert set(feeds) == self.others, f"inputs without a value: {self.others - set(feeds)}"
        binding = self.session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for name, value in self.values.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(present_of(name), value)
        binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(binding)
        *presents, logits = binding.get_outputs()  # in the order in which they were bound
        for present, value in zip(presents, self.values.values(), strict=True):
            assert present.data_ptr() == value.data_ptr()
        return logits.numpy()
