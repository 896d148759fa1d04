"""Where the tensors of a case lie, and how to wait for what is done there."""

import ctypes
import pathlib
from typing import Protocol

import torch


class Place(Protocol):
    """A device, or what stands in for one."""

    device: torch.device

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for so many elements."""

    def stream(self) -> int:
        """The current one, as a number for C."""

    def synchronize(self) -> None:
        """Waits for all that was enqueued."""


class Gpu:
    """PyTorch's current device."""

    def __init__(self) -> None:
        """There is one."""
        self.device = torch.device("cuda", torch.cuda.current_device())

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Of PyTorch."""
        return torch.empty(count, dtype=dtype, device=self.device)

    def stream(self) -> int:
        """PyTorch's."""
        return int(torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        """All streams."""
        torch.cuda.synchronize()


class Cpu:
    """No device: for those who also run on a CPU."""

    device = torch.device("cpu")

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Of PyTorch."""
        return torch.empty(count, dtype=dtype)

    def stream(self) -> int:
        """The default one."""
        return 0

    def synchronize(self) -> None:
        """Nothing is ever enqueued."""


class FakeDriver:
    """The driver of the crate's tests, whose device memory is memory."""

    device = torch.device("cpu")

    def __init__(self, path: pathlib.Path) -> None:
        """Makes the primary context current."""
        self._driver = ctypes.CDLL(str(path))
        context = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self._call("cuCtxSetCurrent", context)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Of the driver, which takes no other; it is never freed."""
        address, size = ctypes.c_uint64(), count * dtype.itemsize
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        memory = (ctypes.c_uint8 * size).from_address(address.value)
        return torch.frombuffer(memory, dtype=dtype)

    def stream(self) -> int:
        """The default one."""
        return 0

    def synchronize(self) -> None:
        """Runs what was launched."""
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name}: {code}")
