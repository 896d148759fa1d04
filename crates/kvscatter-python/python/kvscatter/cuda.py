"""The cache write on CUDA devices: arrays of PyTorch, CuPy, JAX or any other library, on the stream that is current.

A write is prepared once, with every array that it will use, and launched every step or captured in a CUDA graph. What
the arrays hold may change between launches, positions included; where they lie may not. A launch waits for nothing and
allocates nothing. Positions that do not fit are never written: they are counted on the device, and ``status.check()``
raises for them what the CPU raises. Importing this needs neither a driver nor a device.

>>> from kvscatter import cuda
>>> cuda.prepare([])
Traceback (most recent call last):
kvscatter.errors.OptionError: pairs is empty: a write has at least one
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
