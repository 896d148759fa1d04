"""The places in which the tensors of a case are allocated, and how to wait for work there."""

import ctypes
import pathlib
from typing import Protocol

import torch


class Place(Protocol):
    """A device, or a substitute for one."""

    device: torch.device

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocates memory for this number of elements."""

    def stream(self) -> int:
        """Returns the current stream, as a number for C."""

    def synchronize(self) -> None:
        """Waits for all work that was enqueued."""


class Gpu:
    """PyTorch's current device."""

    def __init__(self) -> None:
        """Takes the current device, which must exist."""
        self.device = torch.device("cuda", torch.cuda.current_device())

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocates memory of PyTorch."""
        return torch.empty(count, dtype=dtype, device=self.device)

    def stream(self) -> int:
        """Returns PyTorch's current stream."""
        return int(torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize()


class Cpu:
    """The CPU, for libraries that also run without a device."""

    device = torch.device("cpu")

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocates memory of PyTorch."""
        return torch.empty(count, dtype=dtype)

    def stream(self) -> int:
        """Returns the default stream."""
        return 0

    def synchronize(self) -> None:
        """Returns at once, because nothing is ever enqueued."""


class FakeDriver:
    """The crate's simulated driver, whose device memory is host memory."""

    device = torch.device("cpu")

    def __init__(self, path: pathlib.Path) -> None:
        """Makes the primary context current."""
        self._driver = ctypes.CDLL(str(path))
        context = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self._call("cuCtxSetCurrent", context)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocates memory of the driver, which accepts no other. The memory is never freed."""
        address, size = ctypes.c_uint64(), count * dtype.itemsize
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        memory = (ctypes.c_uint8 * size).from_address(address.value)
        return torch.frombuffer(memory, dtype=dtype)

    def stream(self) -> int:
        """Returns the default stream."""
        return 0

    def synchronize(self) -> None:
        """Runs the launches."""
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name}: {code}")
