"""Attends to the first slots of caches whose other pages cannot be read. A stray read ends the process with
SIGSEGV.

unread_pages.py LENGTH
"""

import ctypes
import mmap
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from support import attention
from support.attention import reference
from support.sessions import LIBRARY, PROVIDER, plugin

# Each slot is one page, and READABLE slots of each cache are readable.
SLOTS, READABLE, HEADS, SIZE = 64, 21, mmap.PAGESIZE // 4 // 64, 64
length = int(sys.argv[1])

ort.register_execution_provider_library(PROVIDER, LIBRARY)
types = {"Q": TensorProto.FLOAT, "K": TensorProto.FLOAT, "V": TensorProto.FLOAT}
types["nonpad_kv_seqlen"] = TensorProto.INT64
model = attention.model(types, ["Y"], 24, is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
session = plugin(model)

libc = ctypes.CDLL(None, use_errno=True)
binding, caches, memories = session.io_binding(), [], []
for seed, name in enumerate("KV"):
    memories.append(mmap.mmap(-1, SLOTS * mmap.PAGESIZE))
    cache = np.frombuffer(memories[-1], np.float32).reshape(1, SLOTS, HEADS * SIZE)
    cache[:] = attention.random(cache.shape, seed)
    caches.append(cache[:, :READABLE].copy())
    address = ctypes.c_void_p(cache.ctypes.data + READABLE * mmap.PAGESIZE)
    rest = ctypes.c_size_t((SLOTS - READABLE) * mmap.PAGESIZE)
    assert libc.mprotect(address, rest, 0) == 0, ctypes.get_errno()
    binding.bind_input(name, "cpu", 0, np.float32, cache.shape, cache.ctypes.data)
query = attention.random((1, 3, HEADS * SIZE), 2)
binding.bind_cpu_input("Q", query)
binding.bind_cpu_input("nonpad_kv_seqlen", np.array([length]))
binding.bind_output("Y")
session.run_with_iobinding(binding)

q, k, v = (array.reshape(1, -1, HEADS, SIZE).swapaxes(1, 2) for array in (query, *caches))
expected = reference(q, k, v, [length]).swapaxes(1, 2).reshape(query.shape)
np.testing.assert_allclose(binding.get_outputs()[0].numpy(), expected, atol=1e-5)
