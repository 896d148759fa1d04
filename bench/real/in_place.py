"""Sessions of ONNX Runtime whose caches are past and present at once."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

PROVIDER = "KvscatterExecutionProvider"
# The code and the bits of each type of a cache.
TYPES = {
    "tensor(float)": (1, np.float32),
    "tensor(float16)": (10, np.float16),
    "tensor(bfloat16)": (16, np.uint16),
    "tensor(int8)": (3, np.int8),
}
# Vectors of caches begin at such addresses.
ALIGNED = 64


def register(plugin: Path) -> None:
    """Loads the plugin for all sessions that are made with it."""
    ort.register_execution_provider_library(PROVIDER, str(plugin))


class InPlace:
    """A session, and its caches by the name of the past."""

    def __init__(self, model: Path, threads: int, plugin: bool = True) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        if plugin:
            devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
            options.add_provider_for_devices(devices, {"fusion": "on"})
            self._session = ort.InferenceSession(str(model), options)
        else:
            self._session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.metadata = self._session.get_modelmeta().custom_metadata_map
        self._inputs = {given.name: given for given in self._session.get_inputs()}
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.caches: dict[str, np.ndarray[Any, Any]] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self.seconds = 0.0
        """The time of the last run. With one thread, the processor time, which other programs do not change much."""
        self._clock = time.perf_counter if threads > 1 else time.thread_time

    def add(self, past: str, present: str, slots: int | None = None) -> None:
        """Adds a cache of zeros for one sample. A model that does not fix its slots needs their number."""
        code, kind = TYPES[self._inputs[past].type]
        _, heads, fixed, size = self._inputs[past].shape
        shape = (1, heads, slots or fixed, size)
        room = np.zeros(int(np.prod(shape)) * np.dtype(kind).itemsize + ALIGNED, np.uint8)
        first = -room.ctypes.data % ALIGNED
        self.caches[past] = room[first : room.size - ALIGNED + first].view(kind).reshape(shape)
        self._places[past] = (present, code)

    def add_all(self) -> None:
        """Adds the caches that the metadata of a converted model lists."""
        for pair in self.metadata["kvscatter.caches"].split("; "):
            self.add(*pair.split(" -> "))

    def run(self, given: dict[str, Any]) -> np.ndarray[Any, Any]:
        """Runs the session with those inputs that it has, and returns the output that is no cache."""
        binding = self._session.io_binding()
        for name, array in given.items():
            if name in self._inputs:
                binding.bind_cpu_input(name, np.asarray(array))
        for past, (present, code) in self._places.items():
            memory = ("cpu", 0, code, self.caches[past].shape, self.caches[past].ctypes.data)
            binding.bind_input(past, *memory)
            binding.bind_output(present, *memory)
        presents = {present for present, _ in self._places.values()}
        (output,) = (name for name in self._outputs if name not in presents)
        binding.bind_output(output, "cpu")
        began = self._clock()
        self._session.run_with_iobinding(binding)
        self.seconds = self._clock() - began
        return binding.get_outputs()[-1].numpy()


class Decoder:
    """A converted decoder with one sequence of tokens in its caches."""

    def __init__(self, model: Path, threads: int, plugin: bool = True) -> None:
        self.session = InPlace(model, threads, plugin)
        self.session.add_all()
        self._slots = int(self.session.metadata["kvscatter.max_seq"])
        self.cached = 0
        """The number of tokens in the caches. A caller may take tokens of linear caches back."""

    def step(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        """Adds tokens, and returns the logits after each of them, `[tokens, words]`."""
        began, self.cached = self.cached, self.cached + len(tokens)
        given = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.arange(self._slots)[None] < self.cached,
            "position_ids": np.arange(began, self.cached)[None],
            "write_indices": np.array([began]),
            "nonpad_kv_seqlen": np.array([self.cached]),
        }
        given["attention_mask"] = given["attention_mask"].astype(np.int64)
        return self.session.run(given)[0]

    def steps(self, tokens: Sequence[int], chunk: int) -> Iterator[np.ndarray[Any, Any]]:
        """Adds tokens in chunks, and returns the logits of each."""
        for first in range(0, len(tokens), chunk):
            yield self.step(tokens[first : first + chunk])

    def continuation(self, prompt: Sequence[int], count: int, chunk: int) -> list[int]:
        """Returns the most likely tokens after a prompt."""
        self.cached, found = 0, []
        for logits in self.steps(prompt, chunk):
            likely = int(logits[-1].argmax())
        while True:
            found.append(likely)
            if len(found) == count:
                return found
            likely = int(self.step(found[-1:])[-1].argmax())
