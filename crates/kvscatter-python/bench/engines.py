"""The engines that write. Most are a statement, as in the innermost loop of a program, and the names that it
uses."""

import dataclasses
import os
import timeit
from collections.abc import Callable
from typing import Any

# Every engine uses one thread. JAX reads this variable when it is imported.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

import kvscatter.jax
from kvscatter import _native

OURS = "kvscatter, NumPy"
OURS_AGAIN = "kvscatter, NumPy again"
OURS_DLPACK = "kvscatter, PyTorch by DLPack"
RUST = "the Rust call"
MEMCPY = "memcpy of the update"
NUMPY = "NumPy slices"
TORCH_SLICES = "PyTorch slices"
TORCH_INDEX_PUT = "PyTorch index_put_"
TORCH_INDEX_COPY = "PyTorch index_copy_"
ONNX_RUNTIME = "ONNX Runtime, shared buffer"
JAX = "JAX, donated"
OURS_JAX = "kvscatter.jax, donated"

PEERS = [NUMPY, TORCH_SLICES, TORCH_INDEX_PUT, TORCH_INDEX_COPY, ONNX_RUNTIME, JAX]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The arrays: float16 `[batch, heads, capacity, width]` and `[batch, heads, rows, width]`, int64
    `[batch]`."""

    cache: np.ndarray
    update: np.ndarray
    starts: np.ndarray

    def slots(self) -> np.ndarray:
        """Returns the slot of each row, `[batch, rows]`."""
        return self.starts[:, None] + np.arange(self.update.shape[2])


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
    """One way to write the update into the cache."""

    name: str
    # Runs the given number of calls and returns their nanoseconds.
    sample: Callable[[int], float]
    # Returns the current cache.
    cache: Callable[[], np.ndarray]


def statement(name: str, given: Inputs, code: str, **names: Any) -> Engine:
    """Makes an engine from Python code that writes `given.cache`. The code is timed without a function call
    around it."""
    timer = timeit.Timer(code, globals=names)
    return Engine(name, lambda calls: timer.timeit(calls) * 1e9, lambda: given.cache)


def ours(given: Inputs) -> list[Engine]:
    """Makes a prepared write on NumPy arrays, the same again, one on PyTorch's tensors, and the Rust call
    inside it."""
    write, code = kvscatter.prepare(given.cache, given.update), "write(cache, update, starts)"
    arrays = {"cache": given.cache, "update": given.update, "starts": given.starts}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    on_tensors = kvscatter.prepare(tensors["cache"], tensors["update"])

    def rust(calls: int) -> float:
        return _native.time_rust_call(write, given.cache, given.update, given.starts, calls)

    return [
        *[statement(name, given, code, write=write, **arrays) for name in (OURS, OURS_AGAIN)],
        statement(OURS_DLPACK, given, code, write=on_tensors, **tensors),
        Engine(RUST, rust, lambda: given.cache),
    ]


def numpy(given: Inputs) -> list[Engine]:
    """Writes one slice for each sample, without a loop if there is one sample."""
    cache, update, rows = given.cache, given.update, given.update.shape[2]
    starts = given.starts.tolist()
    if len(starts) == 1:
        code = "cache[:, :, start : start + rows] = update"
        return [statement(NUMPY, given, code, cache=cache, update=update, rows=rows, start=starts[0])]
    code = "for i, start in enumerate(starts): cache[i, :, start : start + rows] = update[i]"
    return [statement(NUMPY, given, code, cache=cache, update=update, rows=rows, starts=starts)]


def pytorch(given: Inputs) -> list[Engine]:
    """Makes PyTorch's three in-place writes. Every index tensor is made in advance."""
    torch.set_num_threads(1)
    cache, update = torch.from_numpy(given.cache), torch.from_numpy(given.update)
    batch, heads, capacity, width = cache.shape
    slots = torch.from_numpy(given.slots())
    samples, head = torch.arange(batch)[:, None, None], torch.arange(heads)[None, :, None]
    where = (samples, head, slots[:, None, :])
    # `index_copy_` has no index for each sample, so the cache is one long list of rows.
    rows = ((samples * heads + head) * capacity + slots[:, None, :]).flatten()
    flat = {"cache": cache.view(-1, width), "update": update.view(-1, width), "rows": rows}
    slices = "for i, start in enumerate(starts): cache[i, :, start : start + rows].copy_(update[i])"
    names = {"cache": cache, "update": update}
    return [
        statement(TORCH_SLICES, given, slices, starts=given.starts.tolist(), rows=update.shape[2], **names),
        statement(TORCH_INDEX_PUT, given, "cache.index_put_(where, update)", where=where, **names),
        statement(TORCH_INDEX_COPY, given, "cache.index_copy_(0, rows, update)", **flat),
    ]


def onnxruntime(given: Inputs) -> list[Engine]:
    """Uses ONNX Runtime's own kernel for TensorScatter, with one buffer bound as past and as present."""
    types = {"past": (TensorProto.FLOAT16, given.cache), "update": (TensorProto.FLOAT16, given.update)}
    types["starts"] = (TensorProto.INT64, given.starts)
    values = [helper.make_tensor_value_info(name, code, array.shape) for name, (code, array) in types.items()]
    present = helper.make_tensor_value_info("present", TensorProto.FLOAT16, given.cache.shape)
    node = helper.make_node("TensorScatter", [value.name for value in values], ["present"])
    graph = helper.make_graph([node], "step", values, [present])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, (_, array) in types.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("present", "cpu", 0, np.float16, given.cache.shape, given.cache.ctypes.data)
    # This calls the runtime's inner function, because the Python code around it takes as long as a small
    # write.
    names = {"run": session._sess.run_with_iobinding, "binding": binding._iobinding, "keep": (session, given)}
    return [statement(ONNX_RUNTIME, given, "run(binding, None)", **names)]


def in_jax(given: Inputs) -> list[Engine]:
    """Makes `dynamic_update_slice` and this package's custom call. Both write into a donated cache in JAX's own
    memory."""

    def one(cache: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(cache, update, (0, start, 0))

    return [donated(JAX, given, jax.vmap(one)), donated(OURS_JAX, given, kvscatter.jax.tensor_scatter)]


def donated(name: str, given: Inputs, write: Callable[..., jax.Array]) -> Engine:
    """Makes an engine from a function that JAX compiles."""
    step = jax.jit(write, donate_argnums=0)
    held = [jnp.array(given.cache, copy=True)]
    update, starts = jnp.array(given.update), jnp.array(given.starts, jnp.int32)
    held[0] = step(held[0], update, starts).block_until_ready()
    address = held[0].unsafe_buffer_pointer()
    held[0] = step(held[0], update, starts).block_until_ready()
    if held[0].unsafe_buffer_pointer() != address:
        raise SystemExit(f"{name} does not write in place")
    code = "held[0] = step(held[0], update, starts); held[0].block_until_ready()"
    timer = timeit.Timer(code, globals={"held": held, "step": step, "update": update, "starts": starts})
    return Engine(name, lambda calls: timer.timeit(calls) * 1e9, lambda: np.asarray(held[0]))


def memcpy(given: Inputs) -> list[Engine]:
    """Copies the same number of bytes in one piece between separate memory. It is the limit, and its result
    is not checked."""
    return [
        Engine(MEMCPY, lambda calls: _native.time_memcpy(given.update.nbytes, calls), lambda: given.cache)
    ]


ALL = [ours, numpy, pytorch, onnxruntime, in_jax]
