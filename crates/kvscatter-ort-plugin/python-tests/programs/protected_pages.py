"""Writes one row of a cache whose other pages are read-only. A stray write ends the process with SIGSEGV.

protected_pages.py in-place | functional
"""

import ctypes
import mmap
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from support import models
from support.sessions import LIBRARY, PROVIDER, plugin

SLOTS, ROW = 16, mmap.PAGESIZE
WRITTEN = 5

ort.register_execution_provider_library(PROVIDER, LIBRARY)
session = plugin(models.tensor_scatter(TensorProto.UINT8))

memory = mmap.mmap(-1, SLOTS * ROW)
cache = np.frombuffer(memory, np.uint8).reshape(1, SLOTS, ROW)
cache[:] = np.arange(SLOTS, dtype=np.uint8)[:, None]
libc = ctypes.CDLL(None, use_errno=True)
for slot in set(range(SLOTS)) - {WRITTEN}:
    address = ctypes.c_void_p(cache.ctypes.data + slot * ROW)
    assert libc.mprotect(address, ctypes.c_size_t(ROW), mmap.PROT_READ) == 0, ctypes.get_errno()

past = cache if sys.argv[1] == "in-place" else cache.copy()
binding = session.io_binding()
binding.bind_input("past_cache", "cpu", 0, np.uint8, past.shape, past.ctypes.data)
binding.bind_cpu_input("update", np.full((1, 1, ROW), 99, np.uint8))
binding.bind_cpu_input("write_indices", np.array([WRITTEN]))
binding.bind_output("present_cache", "cpu", 0, np.uint8, cache.shape, cache.ctypes.data)
session.run_with_iobinding(binding)

expected = np.arange(SLOTS, dtype=np.uint8)
expected[WRITTEN] = 99
assert (cache == expected[:, None]).all()
