"""Tests the errors before a launch, for arrays on other devices, of other types and forms, and overlapping
arrays."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import device
import numpy as np
import pytest
from device import Dlpack, Interface, Stream

import kvscatter
from kvscatter import cuda
from support import refused

Wrap = Callable[..., Any]
both = pytest.mark.parametrize("wrap", [Dlpack, Interface])


def zeros(*shape: int, dtype: Any = np.float32) -> device.Array:
    return device.copy(np.zeros(shape, dtype))


def written(cache: Any, update: Any, starts: Any = None, **options: Any) -> Callable[[], cuda.Write]:
    return partial(cuda.prepare, [(cache, update)], starts, **{"status": device.status(), **options})


def test_arrays_of_the_cpu() -> None:
    cache, update, starts = zeros(2, 4, 8), zeros(2, 1, 8), zeros(2, dtype=np.int64)
    good = [Dlpack(cache), Dlpack(update), Dlpack(starts)]
    for place, argument in enumerate(("cache", "update", "write_indices")):
        for bad in (np.zeros(1), Dlpack(cache, (device.CPU, 0)), Dlpack(cache, (3, 0))):
            given: list[Any] = [*good]
            given[place] = bad
            error = refused("device", argument, written(*given), of=kvscatter.DeviceError)
            assert str(error) == f"{argument} is on the CPU: must be on a CUDA device"
    refused("device", "status", written(*good, status=np.zeros(2, np.int64)), of=kvscatter.DeviceError)
    error = refused("device", "cache", written(Dlpack(cache, (10, 0)), *good[1:]), of=kvscatter.DeviceError)
    assert str(error) == "cache is on rocm:0 (AMD's, which is not supported): must be on a CUDA device"
    error = refused("device", "cache", written(Dlpack(cache, (15, 0)), *good[1:]), of=kvscatter.DeviceError)
    assert "type 15" in str(error)
    refused("not_an_array", "write_indices", written(*good[:2], [0, 1]), of=kvscatter.ElementTypeError)


def test_arrays_of_another_device() -> None:
    good, other = Dlpack(zeros(2, 4, 8)), Dlpack(zeros(2, 1, 8), (device.CUDA, 1))
    error = refused("device", "update", written(good, other), of=kvscatter.DeviceError)
    assert error.device == "cuda:1" and "make cuda:1 current first" in str(error)
    starts = Dlpack(zeros(2, dtype=np.int64), (device.CUDA, 1))
    refused(
        "device", "write_indices", written(good, Dlpack(zeros(2, 1, 8)), starts), of=kvscatter.DeviceError
    )
    managed = Dlpack(zeros(2, 1, 8), (13, 0))
    assert written(good, managed)().width == 16


@both
def test_dtypes(wrap: Wrap) -> None:
    cache, update = wrap(zeros(2, 4, 8)), wrap(zeros(2, 1, 8))
    call = written(cache, wrap(zeros(2, 1, 8, dtype=np.float16)))
    error = refused("element_type_mismatch", "update", call, of=kvscatter.ElementTypeError)
    assert (error.element, error.cache) == ("float16", "float32")
    for dtype in (np.float32, np.int16, np.uint64, np.uint32, np.bool_):
        call = written(cache, update, wrap(zeros(2, dtype=dtype)))
        error = refused("not_integers", "write_indices", call, of=kvscatter.ElementTypeError)
        assert "must hold int32 or int64 on a device" in str(error)
    pairs = [(wrap(zeros(2, 2, 4, 8, dtype=np.int8)), wrap(zeros(2, 8, dtype=np.int8)))]
    lists = [wrap(zeros(1, dtype=np.int64)), wrap(zeros(2, dtype=np.int64)), wrap(zeros(2, dtype=np.int64))]
    refused("not_integers", "layerId", cuda.prepare_kv_cache_operation, pairs, *lists, status=device.status())


@both
def test_shapes(wrap: Wrap) -> None:
    cache, update = wrap(zeros(2, 4, 8)), wrap(zeros(2, 1, 8))
    refused("dimension_mismatch", "update", written(cache, wrap(zeros(2, 1, 4))), of=kvscatter.ShapeError)
    refused("list_length", "write_indices", written(cache, update, wrap(zeros(3, dtype=np.int32))))
    refused("rank", "write_indices", written(cache, update, wrap(zeros(2, 1, dtype=np.int32))))
    gaps = wrap(zeros(4, dtype=np.int32)[::2])
    refused("not_contiguous", "write_indices", written(cache, update, gaps), of=kvscatter.ArrayError)
    other = [(cache, update), (wrap(zeros(2, 5, 8)), update)]
    error = refused("prepared", "cache", cuda.prepare, other, status=device.status())
    assert (error.pair, error.what) == (1, "shape")
    assert str(error).endswith("prepare another write for this one")
    triple = [(cache, update, wrap(zeros(2, 5, 8)))]
    refused("out_shape", "present", cuda.prepare_present, triple, status=device.status())
    refused("axis_is_batch", "axis", written(cache, update, axis=0), of=kvscatter.OptionError)
    for size in (1, 3):
        call = written(cache, update, status=wrap(zeros(size, dtype=np.int64)))
        assert refused("status_bytes", "status", call).got == 8 * size


def test_sizes_above_the_counters_of_a_device_are_refused() -> None:
    """The memory need not exist, because nothing reads it before a launch."""

    def vast(*shape: int) -> Interface:
        return Interface(zeros(1, dtype=np.int8), shape=shape)

    for cache, update, argument, what in (
        (vast(1, 1 << 31, 1), vast(1, 1, 1), "cache", "capacity"),
        (vast(1 << 30, 1, 1), vast(1 << 30, 1, 1), "update", "samples"),
        (vast(1, 1, 1 << 36), vast(1, 1, 1 << 36), None, "units of a run"),
    ):
        cache.fields["data"], update.fields["data"] = (1 << 44, False), (1 << 45, False)
        error = refused("too_large", argument, written(cache, update), of=kvscatter.ShapeError)
        assert error.what == what and error.got > error.max
        assert str(error) == f"{what} = {error.got}: a launch takes at most {error.max}"


def test_claimed_sizes_above_memory_are_refused() -> None:
    """The arrays claim to be larger than memory."""
    cache, update = Interface(zeros(2, 4, 8)), Interface(zeros(2, 1, 8))
    for shape, kind in (
        ((1 << 33, 1 << 33), "not_contiguous"),
        ((1 << 62,), "not_contiguous"),
        ((1 << 33, 1 << 33, 0), "status_bytes"),
    ):
        status = Interface(zeros(2, dtype=np.int64), shape=shape)
        refused(kind, "status", written(cache, update, status=status))
    pairs = [(Interface(zeros(2, 2, 4, 8, dtype=np.int8)), Interface(zeros(2, 8, dtype=np.int8)))]
    layer = Interface(zeros(1, dtype=np.int32), shape=(1 << 33, 1 << 33))
    lists = [Interface(zeros(2, dtype=np.int64)) for _ in range(2)]
    refused(
        "list_length",
        "layerId",
        cuda.prepare_kv_cache_operation,
        pairs,
        layer,
        *lists,
        status=device.status(),
    )


@both
def test_read_only_arrays_are_read_and_not_written(wrap: Wrap) -> None:
    cache, update, words = zeros(2, 4, 8), zeros(2, 1, 8), zeros(2, dtype=np.int64)
    for array in (cache, update, words):
        array.flags.writeable = False
    good = wrap(zeros(2, 4, 8))
    refused("read_only", "cache", written(wrap(cache), wrap(update)), of=kvscatter.ArrayError)
    refused("read_only", "status", written(good, wrap(update), status=wrap(words)), of=kvscatter.ArrayError)
    written(good, wrap(update), wrap(words))()


@both
def test_lists_begin_where_a_device_can_read_them(wrap: Wrap) -> None:
    cache, update = wrap(zeros(2, 4, 8)), wrap(zeros(2, 1, 8))
    bytes_ = device.memory(64)
    for at, dtype, itemsize in ((4, np.int64, 8), (2, np.int32, 4)):
        starts = bytes_[at : at + 2 * itemsize].view(dtype)
        error = refused("misaligned", "write_indices", written(cache, update, wrap(starts)))
        assert str(error).startswith("write_indices is at 0x") and f"multiple of {itemsize}" in str(error)
    words = bytes_[4:20].view(np.int32)
    refused("misaligned", "status", written(cache, update, status=wrap(words)), of=kvscatter.ArrayError)


@both
def test_caches_that_begin_anywhere_are_written(wrap: Wrap) -> None:
    canvas, update, stream = device.memory(260), device.copy(np.ones((2, 1, 8), np.float32)), Stream()
    cache = canvas[3:259].view(np.float32).reshape(2, 4, 8)
    write = written(wrap(cache), wrap(update), wrap(device.copy(np.array([3, 0]))))()
    assert write.width == 1
    write.launch(stream)
    stream.synchronize()
    assert cache[:, :, 0].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


@both
def test_memory_that_is_read_must_not_overlap_memory_that_is_written(wrap: Wrap) -> None:
    bytes_, cache, update = device.memory(1024), zeros(2, 4, 8), zeros(2, 1, 8)
    within = bytes_[:256].view(np.float32).reshape(2, 4, 8)
    inner = bytes_[128:192].view(np.float32).reshape(2, 1, 8)
    error = refused("overlap", "cache", written(wrap(within), wrap(inner)), of=kvscatter.ArrayError)
    assert error.with_ == "update"
    starts = bytes_[240:256].view(np.int64)
    error = refused("overlap", "write_indices", written(wrap(within), wrap(update), wrap(starts)))
    assert (error.with_, error.with_pair) == ("cache", 0) and str(error).startswith(
        "write_indices overlaps cache"
    )
    refused("overlap", "status", written(wrap(within), wrap(update), status=wrap(bytes_[:16])))
    starts = bytes_[512:528].view(np.int64)
    for shared in (starts, bytes_[512:576].view(np.float32).reshape(2, 1, 8)):
        given = (wrap(cache), wrap(shared)) if shared.ndim == 3 else (wrap(cache), wrap(update), wrap(starts))
        refused("overlap", "status", written(*given, status=wrap(bytes_[520:536])), of=kvscatter.ArrayError)
    twice = [(wrap(cache), wrap(update)), (wrap(cache), wrap(update))]
    refused("overlap", "cache", cuda.prepare, twice, status=device.status(), of=kvscatter.ArrayError)


def test_memory_that_was_freed() -> None:
    update = Interface(zeros(2, 1, 8))
    gone = Interface(zeros(2, 4, 8), data=(0, False))
    error = refused("export", "cache", written(gone, update), of=kvscatter.ArrayError)
    assert str(error).endswith("its data is null: was it freed?")

    class Deleted(Dlpack):
        def __dlpack__(self, **keywords: Any) -> Any:
            raise RuntimeError("Array has been deleted.")

    error = refused("export", "update", written(Interface(zeros(2, 4, 8)), Deleted(zeros(2, 1, 8))))
    assert "has been deleted" in str(error)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"data": None}, "export"),
        ({"data": 7}, "export"),
        ({"shape": (-2, 4, 8)}, "export"),
        ({"shape": None}, "export"),
        ({"strides": (8,)}, "export"),
        ({"strides": (130, 32, 4)}, "strides"),
        ({"typestr": "<V2"}, "element_type"),
        ({"typestr": ">f4"}, "byte_order"),
        ({"typestr": "|O"}, "element_type"),
        ({"typestr": "nothing"}, "export"),
        ({"mask": object()}, "export"),
        ({"stream": 0}, "export"),
        ({"stream": -1}, "export"),
    ],
)
def test_interfaces_that_say_what_they_must_not(fields: dict[str, Any], kind: str) -> None:
    bad = Interface(zeros(2, 4, 8), **fields)
    refused(kind, "cache", written(bad, Interface(zeros(2, 1, 8))))


def test_interfaces_that_are_no_dict() -> None:
    class Odd:
        __cuda_array_interface__ = 7

    refused("export", "cache", written(Odd(), Interface(zeros(2, 1, 8))), of=kvscatter.ArrayError)


def test_libraries_whose_arrays_are_immutable() -> None:
    immutable = type("Array", (Dlpack,), {"__module__": "tensorflow.python"})
    call = written(immutable(zeros(2, 4, 8)), Dlpack(zeros(2, 1, 8)))
    error = refused("immutable", "cache", call, of=kvscatter.ArrayError)
    assert "TensorFlow array, which is immutable: use memory of PyTorch, CuPy or your own" in str(error)
    written(Dlpack(zeros(2, 4, 8)), immutable(zeros(2, 1, 8)))()


Fault = tuple[str, str, tuple[str, ...], dict[str, Any]]


def faults(names: tuple[str, ...]) -> list[Fault]:
    """Lists the faults that a call can have, in the order in which they are reported.

    The order is: arrays that are not on a device, types, shapes, devices, then limits of memory and numbers
    of values. Each group is in the order of the call. A fault consists of the error's kind and argument, the
    arrays that have it, and the change that causes it. The names of the second pair end with ``+``.
    """
    cache, written = names[0], names[-1] if len(names) == 3 else names[0]
    every = (*names, "write_indices", "status")
    all_: list[Fault] = [
        *(("device", name, (name,), {"device": (device.CPU, 0)}) for name in every),
        ("element_type_mismatch", "update", ("update", "update+"), {"dtype": np.int32}),
        ("element_type_mismatch", "present", ("present",), {"dtype": np.int32}),
        ("prepared", cache, (f"{cache}+",), {"dtype": np.int32}),
        ("not_integers", "write_indices", ("write_indices",), {"dtype": np.float64}),
        ("out_shape", "present", ("present",), {"shape": (2, 5, 8)}),
        ("prepared", "update", ("update+",), {"shape": (2, 2, 8)}),
        ("dimension_mismatch", "update", ("update", "update+"), {"shape": (2, 1, 4)}),
        ("rank", "write_indices", ("write_indices",), {"shape": (2, 1)}),
        ("status_bytes", "status", ("status",), {"shape": (3,)}),
        *(("device", name, (name,), {"device": (device.CUDA, 1)}) for name in every),
        ("overlap", written, (written, "update"), {"memory": device.memory(1024)}),
        ("list_length", "write_indices", ("write_indices",), {"shape": (3,)}),
    ]
    return [fault for fault in all_ if fault[1] in every]


def array(dtype: Any, shape: tuple[int, ...], device: tuple[int, int], memory: Any) -> Dlpack:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = zeros(size, dtype=np.uint8) if memory is None else memory[:size]
    return Dlpack(memory.view(dtype).reshape(shape), device)


@pytest.mark.parametrize("names", [("cache", "update"), ("past", "update", "present")])
def test_which_of_two_errors_is_told(names: tuple[str, ...]) -> None:
    good: dict[str, Any] = {
        "dtype": np.float32,
        "shape": (2, 4, 8),
        "device": (device.CUDA, 0),
        "memory": None,
    }
    every: dict[str, dict[str, Any]] = {name + second: good for name in names for second in ("", "+")}
    every |= {name: {**good, "shape": (2, 1, 8)} for name in ("update", "update+")}
    every |= {name: {**good, "dtype": np.int64, "shape": (2,)} for name in ("write_indices", "status")}

    def call(*wrong: Fault) -> cuda.Write:
        given = {name: dict(of) for name, of in every.items()}
        for _, _, places, change in reversed(wrong):
            for place in places:
                given[place].update(change)
        arrays = {name: array(**of) for name, of in given.items()}
        rows: Any = [tuple(arrays[name + second] for name in names) for second in ("", "+")]
        prepare = cuda.prepare_present if len(names) == 3 else cuda.prepare
        return prepare(rows, arrays["write_indices"], status=arrays["status"])

    call()
    for place, fault in enumerate(faults(names)):
        kind, argument, *_ = fault
        refused(kind, argument, call, fault)
        for later in faults(names)[place + 1 :]:
            refused(kind, argument, call, fault, later)


def test_threads_without_a_context() -> None:
    write = written(Dlpack(zeros(2, 4, 8)), Dlpack(zeros(2, 1, 8)))()
    calls: list[Callable[[], object]] = [
        written(Dlpack(zeros(2, 4, 8)), Dlpack(zeros(2, 1, 8))),
        write.status.check,
    ]
    calls += [partial(write.launch, Stream()), partial(write.status.clear, Stream()), write.status.read]
    kinds = []

    def run() -> None:
        for call in calls:
            error = refused("no_context", None, call, of=kvscatter.CudaError)
            assert "torch.cuda.set_device" in str(error)
            kinds.append(error.kind)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(kinds) == len(calls)


@device.only_fake
def test_errors_of_the_driver_are_raised() -> None:
    write, stream = written(Dlpack(zeros(2, 4, 8)), Dlpack(zeros(2, 1, 8)))(), Stream()
    for name, call in (
        ("cuLaunchKernel", partial(write.launch, stream)),
        ("cuMemcpyDtoH_v2", write.status.check),
        ("cuMemsetD8Async", partial(write.status.clear, stream)),
    ):
        with device.failing(name, 700):
            error = refused("driver", None, call, of=kvscatter.CudaError)
        assert error.code == 700 and f"{name}: CUDA_ERROR_ILLEGAL_ADDRESS" in str(error)
    assert cuda.driver_version() == 13000


@device.only_fake
def test_devices_and_moments_that_load_no_kernels() -> None:
    """Each call uses its own context, because a context does not load the kernels twice."""
    call = written(Dlpack(zeros(2, 4, 8)), Dlpack(zeros(2, 1, 8)))
    with device.new_context(), device.of_capability(70):
        error = refused("compute_capability", None, call, of=kvscatter.CudaError)
        assert error.got == 70
        assert str(error) == "compute capability 7.5 or later is needed, this device has 7.0"
    with device.new_context(), device.failing("cuModuleLoadData", 218):
        error = refused("kernels", None, call, of=kvscatter.CudaError)
        assert error.code == 218 and "cannot run the kernels" in str(error)
    for code in (2, 700, 900):
        with device.new_context(), device.failing("cuModuleLoadData", code):
            error = refused("driver", None, call, of=kvscatter.CudaError)
            assert error.code == code and ("prepare one write in this context before" in str(error)) == (
                code == 900
            )


@device.only_fake
def test_a_process_that_has_asked_for_the_version_may_fork() -> None:
    code = """
import ctypes
from kvscatter import cuda
print(cuda.driver_version(), ctypes.CDLL("libcuda.so.1").fake_calls(b"cuInit"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "13000 0\n"
