"""A CUDA device for tests. It calls the driver's C functions and presents device memory as arrays of several
libraries.

NumPy can read that memory. The simulated driver of kvscatter-cuda has no device. It uses the host's memory,
and does nothing before a stream is synchronised. On a real device, the tests allocate memory that device and
host share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]

CPU, CUDA = 1, 2
ATTACH_GLOBAL = 1

_driver = ctypes.CDLL("libcuda.so.1")

#: Whether this is the simulated driver, which can inject failures and count its calls.
IS_FAKE = hasattr(_driver, "fake_fail")
only_fake = pytest.mark.skipif(not IS_FAKE, reason="needs the simulated driver")


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver, which must succeed."""
    code = getattr(_driver, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def calls(name: str) -> int:
    """Returns how often this thread has called a function."""
    return int(_driver.fake_calls(name.encode()))


@contextmanager
def failing(name: str, code: int) -> Iterator[None]:
    """Makes a function fail in this thread."""
    _driver.fake_fail(name.encode(), code)
    yield
    _driver.fake_fail(b"", 0)


@contextmanager
def of_capability(number: int) -> Iterator[None]:
    """Gives the device another compute capability in this thread."""
    _driver.fake_device(number, ctypes.c_double(9))
    yield
    _driver.fake_device(90, ctypes.c_double(9))


@contextmanager
def new_context() -> Iterator[None]:
    """Makes a new context current, in which nothing has been loaded."""
    context = ctypes.c_void_p()
    call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    yield
    call("cuCtxDestroy_v2", context)
    choose()


def choose() -> None:
    """Makes the device's context current on this thread."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


def memory(size: int, fill: int = 0) -> npt.NDArray[np.uint8]:
    """Allocates bytes on the device, which are never freed."""
    address = ctypes.c_uint64()
    bytes_wanted = ctypes.c_size_t(max(size, 1))
    if IS_FAKE:
        call("cuMemAlloc_v2", ctypes.byref(address), bytes_wanted)
    else:
        call("cuMemAllocManaged", ctypes.byref(address), bytes_wanted, ctypes.c_uint(ATTACH_GLOBAL))
    assert address.value is not None
    bytes_ = np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address.value)), np.uint8)
    bytes_[:] = fill
    return bytes_


def copy(array: Array) -> Array:
    """Returns a contiguous copy of the array on the device."""
    values = np.ascontiguousarray(array)
    there = memory(values.nbytes).view(values.dtype).reshape(array.shape)
    there[...] = array
    return there


class Stream:
    """A stream that does not wait for other streams, and has its address in the same attribute as CuPy's
    streams."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(handle), 1)
        assert handle.value is not None
        self.ptr = handle.value

    def synchronize(self) -> None:
        call("cuStreamSynchronize", ctypes.c_void_p(self.ptr))

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Captures the work, and returns a function that launches it on this stream."""
        self.begin_capture()
        work()
        return self.end_capture()

    def begin_capture(self) -> None:
        call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.ptr), 0)

    def end_capture(self) -> Callable[[], None]:
        """Ends the capture, and returns a function that launches the captured work on this stream."""
        handle, graph, executable = ctypes.c_void_p(self.ptr), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamEndCapture", handle, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return lambda: call("cuGraphLaunch", executable, handle)


class Dlpack:
    """Device memory of a library with DLPack. It records the keywords of each export."""

    def __init__(self, array: Array, device: tuple[int, int] = (CUDA, 0)) -> None:
        self.array, self.where = array, device
        self.asked: list[dict[str, Any]] = []
        self.unknown: frozenset[str] = frozenset()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where

    def __dlpack__(self, **keywords: Any) -> Any:
        if not self.unknown.isdisjoint(keywords):
            raise TypeError("unexpected keyword")
        self.asked.append(dict(keywords))
        keywords.pop("stream", None)
        return moved(self.array.__dlpack__(**keywords), self.where)


def moved(capsule: Any, device: tuple[int, int]) -> Any:
    """Changes the device in a capsule of NumPy."""
    where = ctypes.pythonapi.PyCapsule_GetPointer
    where.restype, where.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if '"dltensor"' in repr(capsule):
        address = where(capsule, b"dltensor") + 8  # after `data`
    else:
        # The capsule begins with `version`, `manager_ctx`, `deleter` and `flags`. The tensor follows with
        # `data` and `device`.
        address = where(capsule, b"dltensor_versioned") + 8 + 8 + 8 + 8 + 8
    ctypes.c_int32.from_address(address).value = device[0]
    ctypes.c_int32.from_address(address + 4).value = device[1]
    return capsule


class Interface:
    """Device memory of a library without DLPack."""

    def __init__(self, array: Array, **fields: Any) -> None:
        self.array, self.fields = array, fields

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        of_numpy = self.array.__array_interface__
        return {**of_numpy, "version": 3, "stream": None, **self.fields}


def status() -> Dlpack:
    """Returns a status without bad indices."""
    return Dlpack(memory(16).view(np.int64))
