"""Runs a model in ONNX Runtime over memory of the caller. Two adapters use this file."""

import ctypes
import os

# The wheels since 1.29 queue telemetry events and send them from a thread. The variable is read at the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from onnx import helper

from harness.case import NotPossible

ort.set_default_logger_severity(4)


def options():
    """Returns options that keep the log quiet, because every refusal is logged."""
    made = ort.SessionOptions()
    made.log_severity_level = 4
    return made


def run(session, case, in_place):
    """Runs a session once. In place, the cache is bound as the input and as the first output."""
    if any(array.dtype == object for array in case.inputs.values()):
        if in_place:
            raise NotPossible("memory of strings cannot be bound")
        return session.run(None, case.inputs)
    binding = session.io_binding()
    packed = {name: Buffer(array) for name, array in case.inputs.items()}
    for name, buffer in packed.items():
        binding.bind_input(name, "cpu", 0, buffer.code, buffer.shape, buffer.address)
    cache = packed.get(case.cache_name)
    for number, name in enumerate(case.outputs):
        if in_place and number == 0:
            binding.bind_output(name, "cpu", 0, cache.code, cache.shape, cache.address)
        else:
            binding.bind_output(name, "cpu")
    try:
        session.run_with_iobinding(binding)
    finally:
        if cache is not None:
            cache.copy_back()
    outputs = [array_of(value) for value in binding.get_outputs()]
    if not in_place:
        return outputs
    is_shared = binding.get_outputs()[0].data_ptr() == cache.address
    return {"outputs": [case.cache if is_shared else outputs[0], *outputs[1:]], "same_memory": is_shared}


class Buffer:
    """The memory of an array as ONNX stores it. NumPy has a byte for each 4-bit element, so those are packed."""

    def __init__(self, array):
        self.code, self.shape = helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
        self._array = array
        self._packed = pack(array) if is_nibbles(array.dtype) else None

    @property
    def address(self):
        return (self._array if self._packed is None else self._packed).ctypes.data

    def copy_back(self):
        """Copies what a call wrote into the array."""
        if self._packed is not None:
            self._array[...] = unpack(self._packed, self._array.dtype, self._array.shape)


def array_of(value):
    """Returns a copy of a tensor of ONNX Runtime, also of types that its Python interface cannot convert."""
    dtype, shape = helper.tensor_dtype_to_np_dtype(value.element_type()), value.shape()
    count = int(np.prod(shape))
    size = (count + 1) // 2 if is_nibbles(dtype) else count * dtype.itemsize
    data = (
        np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8) if size else np.empty(0, np.uint8)
    )
    return unpack(data, dtype, shape) if is_nibbles(dtype) else data.view(dtype).reshape(shape)


def is_nibbles(dtype):
    return dtype.name in ("int4", "uint4", "float4_e2m1fn")


def pack(array):
    flat = array.reshape(-1).view(np.uint8) & 0xF
    pairs = np.append(flat, np.zeros(flat.size % 2, np.uint8)).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def unpack(data, dtype, shape):
    nibbles = np.stack([data & 0xF, data >> 4], axis=-1).reshape(-1)[: int(np.prod(shape))]
    if dtype.name == "int4":
        # ml_dtypes keeps the sign in the upper half of the byte.
        nibbles = np.where(nibbles > 7, nibbles | 0xF0, nibbles).astype(np.uint8)
    return nibbles.view(dtype).reshape(shape)
