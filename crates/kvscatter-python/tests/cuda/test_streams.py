"""Tests the stream of a launch, the keywords of exports, and the lifetime of arrays, with simulated
libraries."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Any

import device
import numpy as np
import pytest
import simulated
from device import Dlpack, Interface, Stream

import kvscatter
from kvscatter import cuda
from support import refused


def arrays(wrap: Any = Dlpack, **more: Any) -> tuple[device.Array, Any, Any]:
    cache, update = device.copy(np.zeros((2, 4, 8))), device.copy(np.ones((2, 1, 8)))
    return cache, wrap(cache, **more), wrap(update, **more)


def runs_on(stream: Stream, cache: device.Array) -> bool:
    """Returns True if the launch was waiting on this stream, and then clears the cache."""
    assert not (device.IS_FAKE and cache.any())
    stream.synchronize()
    ran = bool(cache.any())
    cache[...] = 0
    return ran


def test_streams_that_are_given() -> None:
    stream, (cache, whole, update) = Stream(), arrays()
    write = cuda.prepare([(whole, update)], status=device.status())

    class OfTorch:
        cuda_stream = stream.ptr

    class OfCuda:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.ptr

    for given in (stream, stream.ptr, OfTorch(), OfCuda()):
        write.launch(given)
        assert runs_on(stream, cache)
    write.launch(stream=0)
    device.call("cuStreamSynchronize", None)
    assert cache.any()
    for bad in (True, 1.5, "stream", object()):
        refused("keyword_type", "stream", write.launch, bad, of=kvscatter.ElementTypeError)
    for outside in (-1, 1 << 64):
        refused("integer_range", "stream", write.launch, outside, of=kvscatter.OptionError)


def test_a_library_that_names_its_stream() -> None:
    one, two = Stream(), Stream()
    cache, whole, update = arrays(Interface, stream=one.ptr)
    write = cuda.prepare([(whole, update)], status=device.status())
    write.launch()
    assert runs_on(one, cache)
    write.launch(two)
    assert runs_on(two, cache)
    update.fields["stream"] = two.ptr
    write = cuda.prepare([(whole, update)], status=device.status())
    refused("unknown", "stream", write.launch, of=kvscatter.OptionError)


def test_a_library_that_is_not_known_needs_stream_and_status() -> None:
    _, whole, update = arrays()
    write = cuda.prepare([(whole, update)], status=device.status())
    error = refused("unknown", "stream", write.launch, of=kvscatter.OptionError)
    assert str(error).startswith(
        "stream is needed, as in launch(stream): the current stream is known for PyTorch"
    )
    assert str(error).endswith("the first cache is of device")
    refused("unknown", "stream", write.status.clear, of=kvscatter.OptionError)
    error = refused("unknown", "status", cuda.prepare, [(whole, update)], of=kvscatter.OptionError)
    assert str(error).endswith("only PyTorch and CuPy can allocate one, and the first cache is of device")


def test_no_library_is_asked_to_wait() -> None:
    _, whole, update = arrays()
    status = device.status()
    cuda.prepare([(whole, update)], status=status)
    for array in (whole, update, status):
        assert [asked["stream"] for asked in array.asked] == [-1]
        assert [asked["copy"] for asked in array.asked] == [False]


def test_older_libraries_are_not_asked_to_wait_either() -> None:
    for unknown in ({"copy"}, {"copy", "max_version"}):
        _, whole, update = arrays()
        update.unknown = frozenset(unknown)
        cuda.prepare([(whole, update)], status=device.status())
        assert [asked["stream"] for asked in update.asked] == [-1]


def test_jax_is_given_no_stream() -> None:
    pytest.importorskip("jax", reason="this Python has no JAX")
    of_jax = type("ArrayImpl", (Dlpack,), {"__module__": "jaxlib._jax"})
    _, whole, update = arrays()
    starts = of_jax(device.copy(np.array([0, 1])))
    cuda.prepare([(whole, update)], starts, status=device.status())
    assert ["stream" in asked for asked in starts.asked] == [False]


def test_arrays_live_as_long_as_the_write_and_its_status() -> None:
    cache, whole, update = arrays()
    starts = Dlpack(device.copy(np.array([1, 2])))
    gone = [weakref.ref(array) for array in (whole, update, starts)]
    write = cuda.prepare([(whole, update)], starts, status=device.status())
    status, stream = write.status, Stream()
    del whole, update, starts
    gc.collect()
    write.launch(stream)
    assert runs_on(stream, cache)
    del write
    gc.collect()
    status.check()
    assert all(reference() is not None for reference in gone)
    del status
    gc.collect()
    assert not any(reference() is not None for reference in gone)


class CountedStream(Stream):
    """A stream that counts how often it was synchronised."""

    waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        super().synchronize()


class Library:
    """A simulated library that makes arrays, and whose current stream the tests set."""

    def __init__(self, name: str) -> None:
        self.name, self.current, self.made = name, CountedStream(), []  # type: tuple[str, CountedStream, list[Any]]
        no = staticmethod(lambda: False)
        torch = {"requires_grad": False, "is_neg": no, "is_conj": no, "_version": 0, "device": "cuda:0"}
        self.of = type("Array", (Dlpack,), {"__module__": name, **(torch if name == "torch" else {})})

    def zeros(self, count: int, **keywords: Any) -> Any:
        self.made.append(keywords)
        return self.of(device.copy(np.zeros(count, np.int64)))

    def current_stream(self, number: int) -> Any:
        assert number == 0
        return types.SimpleNamespace(cuda_stream=self.current.ptr, synchronize=self.current.synchronize)

    def modules(self) -> dict[str, types.ModuleType]:
        parts = ("", ".cuda", ".autograd", ".autograd.graph")
        modules = {self.name + part: types.ModuleType(self.name + part) for part in parts}
        cuda = modules[f"{self.name}.cuda"]
        vars(modules[self.name]).update(int64="int64", zeros=self.zeros, cuda=cuda)
        vars(cuda).update(current_stream=self.current_stream, get_current_stream=lambda: self.current)
        vars(modules[f"{self.name}.autograd.graph"])["increment_version"] = simulated.increment_version
        return modules


# The package looks up PyTorch's functions once, and test_torch.py uses PyTorch itself.
@pytest.fixture(params=[pytest.param("torch", marks=device.only_fake), "cupy"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library(request.param)
    for name, module in library.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return library


def test_the_current_stream_at_each_launch(library: Library) -> None:
    is_torch = library.name == "torch"
    cache, whole, update = arrays(library.of)
    write = cuda.prepare([(whole, update)])
    assert library.made == [{"dtype": "int64", "device": "cuda:0"} if is_torch else {"dtype": "int64"}]
    assert library.current.waits == 1, "the status is zero for launches on other streams too"
    simulated.counted.clear()
    for _ in range(2):
        library.current = CountedStream()
        write.launch()
        assert library.current.waits == 0
        assert runs_on(library.current, cache)
    assert simulated.counted == [1, 1] * is_torch, "autograd sees that the cache was written"
    write.status.clear()
    library.current.synchronize()
    write.status.check()


def test_gradients_are_refused() -> None:
    _, whole, update = arrays(Library("torch").of)
    update.requires_grad = True
    refused("tensor", "update", cuda.prepare, [(whole, update)], of=kvscatter.ArrayError)
