"""Writes caches on CUDA devices, on the current stream. Arrays may be those of PyTorch, CuPy, JAX or any
other library.

A write is prepared once, with every array that it will use. It is then launched in every step, or captured
in a CUDA graph. The contents of the arrays may change between launches, including the positions, but their
addresses may not. A launch does not wait and does not allocate memory. Positions that do not fit are never
written. The device counts them, and ``status.check()`` raises the same errors as the CPU functions.
Importing this module needs neither a driver nor a device.

>>> from kvscatter import cuda
>>> cuda.prepare([])
Traceback (most recent call last):
kvscatter.errors.OptionError: pairs is empty: pass at least one
"""

from kvscatter._native import CudaStatus as Status
from kvscatter._native import CudaWrite as Write
from kvscatter._native import cuda_driver_version as driver_version
from kvscatter._native import cuda_prepare as prepare
from kvscatter._native import cuda_prepare_kv_cache_operation as prepare_kv_cache_operation
from kvscatter._native import cuda_prepare_kv_cache_update as prepare_kv_cache_update
from kvscatter._native import cuda_prepare_present as prepare_present
from kvscatter._native import cuda_prepare_slots as prepare_slots
from kvscatter._status import StatusWords

__all__ = [
    "Status",
    "StatusWords",
    "Write",
    "driver_version",
    "prepare",
    "prepare_kv_cache_operation",
    "prepare_kv_cache_update",
    "prepare_present",
    "prepare_slots",
]


def __dir__() -> list[str]:
    return __all__
