"""Exported decoders in plain ONNX Runtime, driven as their exporters intend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from kvscatter.histories import Engine, Refused

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
HEAD_SIZES = (64, 128, 32, 16, 8, 4, 256)


class OnnxRuntime(Engine):
    """A decoder with ``input_ids``, ``attention_mask``, perhaps ``position_ids``, and a past and present of each cache.

    Caches grow: the presents of a step are the pasts of the next one. With ``GroupQueryAttention`` each cache is a
    buffer with room for more tokens, which a step writes in place. That operator takes several tokens after others
    only for one sample.

    Args:
        model: The file of the decoder.
    """

    takes_model = True

    def __init__(self, model: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]
        self._pasts = [name for name in self._inputs if name.startswith("past")]
        self._presents = [name for name in self._outputs if name.startswith("present")]
        is_shared = b"GroupQueryAttention" in Path(model).read_bytes()
        self.name = f"ONNX Runtime {onnxruntime.__version__}, {Path(model).parent.name}"
        self.capacity = 48 if is_shared else None
        self.batch = 1 if is_shared else 3
        has_states = any(len(self._inputs[name].shape) == 3 for name in self._pasts)
        # A state has no rows to drop. Only a buffer has slots after the tokens.
        self.lacks = (("truncate",) if has_states else ()) + (() if is_shared else ("poison",))
        self._head_size, self.vocabulary = self._sizes()

    def _sizes(self) -> tuple[int, int]:
        """Returns the head size and the number of tokens. Some exports do not state the head size."""
        for size in HEAD_SIZES:
            self._head_size = size
            self.start(1)
            try:
                return size, self._run([[1]]).shape[2]
            except Exception:
                if size == HEAD_SIZES[-1]:
                    raise
        raise AssertionError("HEAD_SIZES is empty")

    def start(self, samples: int) -> None:
        """Begins with empty caches, or with buffers of zeros."""
        self.length = 0
        self._caches = {}
        for name in self._pasts:
            _, *dims = self._inputs[name].shape
            if len(dims) == 3:
                heads, _, size = dims
                dims = [heads, self.capacity or 0, size if isinstance(size, int) else self._head_size]
            self._caches[name] = np.zeros((samples, *dims), TYPES[self._inputs[name].type])

    def feed(self, rows: list[list[int]]) -> list[Any]:
        """Runs the model."""
        return list(self._run(rows))

    def _run(self, rows: list[list[int]]) -> Any:
        count, samples = len(rows[0]), len(rows)
        if self.capacity is not None and self.length + count > self.capacity:
            raise Refused(f"{self.length + count} tokens in {self.capacity} slots")
        given = {
            "input_ids": np.array(rows),
            "attention_mask": np.ones((samples, self.length + count)),
            "position_ids": np.tile(np.arange(self.length, self.length + count), (samples, 1)),
        }
        feeds = {
            name: given[name].astype(TYPES[self._inputs[name].type]) for name in given if name in self._inputs
        }
        if self.capacity is None:
            logits, *presents = self._session.run(["logits", *self._presents], {**feeds, **self._caches})
            self._caches = dict(zip(self._pasts, presents, strict=True))
        else:
            logits = self._run_in_place(feeds)
        self.length += count
        return logits

    def _run_in_place(self, feeds: dict[str, Any]) -> Any:
        binding = self._session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for past, present in zip(self._pasts, self._presents, strict=True):
            cache = onnxruntime.OrtValue.ortvalue_from_numpy(self._caches[past])
            binding.bind_ortvalue_input(past, cache)
            binding.bind_ortvalue_output(present, cache)
        binding.bind_output("logits")
        self._session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()

    def truncate(self, lengths: list[int]) -> None:
        """Drops the last rows of growing caches. A buffer keeps them, and the shorter mask hides them."""
        self.length = lengths[0]
        if self.capacity is None:
            self._caches = {name: cache[:, :, : self.length] for name, cache in self._caches.items()}

    def reorder(self, parents: list[int]) -> None:
        """Selects samples."""
        self._caches = {name: cache[parents].copy() for name, cache in self._caches.items()}

    def fork(self, sample: int) -> None:
        """Appends a copy of a sample."""
        samples = len(next(iter(self._caches.values())))
        self.reorder([*range(samples), sample])

    def remove(self, sample: int) -> None:
        """Selects the other samples."""
        samples = len(next(iter(self._caches.values())))
        self.reorder([each for each in range(samples) if each != sample])

    def poison(self) -> None:
        """Writes NaN into the slots after the tokens. States have no slots."""
        for cache in self._caches.values():
            if cache.ndim == 4:
                cache[:, :, self.length :] = np.nan
