"""Calls the handler that `kvscatter.jax` registers for CUDA devices as XLA does, and compares it with the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p
from typing import Any

import device
import numpy as np
import pytest
from device import Stream
from test_writes import GUARD, guarded

import kvscatter
import support
from kvscatter import _native
from kvscatter.testing import Case, cases

#: The numbers of XLA's element types.
NUMBERS = {
    "bool": 1,
    **{f"int{8 << power}": 2 + power for power in range(4)},
    **{f"uint{8 << power}": 6 + power for power in range(4)},
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 15,
    "bfloat16": 16,
    "complex128": 18,
}
BUFFER, SCALAR, STRING = 1, 3, 4
PRED, S64 = 1, 5
EXECUTE = 3
INVALID_ARGUMENT, OUT_OF_RANGE, INTERNAL = 3, 11, 13


# ── XLA's structs ───────────────────────────────────────────────────────────────────────────────────────────────


class Struct(ctypes.Structure):
    """A struct that begins with its size and its extensions."""

    def __init__(self, *values: Any) -> None:
        super().__init__(ctypes.sizeof(self), None, *values)


HEAD: list[Any] = [("struct_size", c_size_t), ("extension", c_void_p)]


class Buffer(Struct):
    _fields_ = [*HEAD, ("element", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p)]


class Values(Struct):
    _fields_ = [*HEAD, ("size", c_int64), ("types", c_void_p), ("values", c_void_p)]


class Attributes(Struct):
    _fields_ = [*HEAD, ("size", c_int64), ("types", c_void_p), ("names", c_void_p), ("values", c_void_p)]


class Span(ctypes.Structure):
    _fields_ = [("bytes", c_char_p), ("size", c_size_t)]


class Scalar(ctypes.Structure):
    _fields_ = [("element", c_int), ("value", c_void_p)]


class Frame(Struct):
    _fields_ = [
        *HEAD,
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", Values),
        ("results", Values),
        ("attributes", Attributes),
    ]


class StreamGet(Struct):
    _fields_ = [*HEAD, ("context", c_void_p), ("stream", c_void_p)]


class ErrorCreate(Struct):
    _fields_ = [*HEAD, ("message", c_char_p), ("code", c_int)]


#: The functions of the table, in its order. A handler of a CUDA device calls two of them.
ERROR_CREATE, STREAM_GET, FUNCTIONS = 0, 4, 13
Function = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class Table(Struct):
    _fields_ = [
        *HEAD,
        ("version", c_uint8 * 24),
        ("internal", c_void_p),
        ("functions", c_void_p * FUNCTIONS),
    ]


def handler() -> Callable[..., Any]:
    """Returns the function in the capsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    address = get(_native.xla_handlers()["CUDA"], b"xla._CUSTOM_CALL_TARGET")
    return ctypes.CFUNCTYPE(c_void_p, ctypes.POINTER(Frame))(address)


class Host:
    """Calls the handler, as XLA does on one stream."""

    def __init__(self, has_stream: bool = True) -> None:
        self.stream, self.errors = Stream(), []  # type: Stream, list[tuple[int, str]]
        self.call = handler()

        def create(args: int) -> int:
            error = ErrorCreate.from_address(args)
            self.errors.append((error.code, error.message.decode()))
            return 1

        def get(args: int) -> int:
            StreamGet.from_address(args).stream = self.stream.ptr
            return 0 if has_stream else 1

        functions = [Function(lambda _: 0)] * FUNCTIONS
        functions[ERROR_CREATE], functions[STREAM_GET] = Function(create), Function(get)
        self.functions = functions
        pointers = [ctypes.cast(function, c_void_p).value for function in functions]
        self.table = Table((c_uint8 * 24)(), None, (c_void_p * FUNCTIONS)(*pointers))

    def run(
        self, arguments: list[device.Array], results: list[device.Array], **attributes: Any
    ) -> tuple[int, str] | None:
        """Makes a call, and returns the code and the message of its error."""
        keep: list[Any] = []

        def address(it: Any) -> int:
            keep.append(it)
            return ctypes.addressof(it)

        def array_of(kind: Any, items: list[Any]) -> int:
            return address((kind * max(len(items), 1))(*items))

        def values(arrays: list[device.Array]) -> Values:
            buffers = [
                address(
                    Buffer(NUMBERS[it.dtype.name], it.ctypes.data, it.ndim, array_of(c_int64, list(it.shape)))
                )
                for it in arrays
            ]
            return Values(len(arrays), array_of(c_int, [BUFFER] * len(arrays)), array_of(c_void_p, buffers))

        def attribute(value: Any) -> tuple[int, int]:
            if isinstance(value, str):
                return STRING, address(Span(value.encode(), len(value)))
            kind, element = (c_uint8, PRED) if isinstance(value, bool) else (c_int64, S64)
            return SCALAR, address(Scalar(element, address(kind(value))))

        read = [attribute(value) for value in attributes.values()]
        names = [address(Span(name.encode(), len(name))) for name in attributes]
        frame = Frame(
            ctypes.addressof(self.table),
            None,
            EXECUTE,
            values(arguments),
            values(results),
            Attributes(
                len(read),
                array_of(c_int, [kind for kind, _ in read]),
                array_of(c_void_p, names),
                array_of(c_void_p, [value for _, value in read]),
            ),
        )
        self.errors.clear()
        failed = self.call(ctypes.byref(frame))
        assert (failed is not None) == bool(self.errors)
        return self.errors[0] if self.errors else None


def status() -> device.Array:
    """Returns the second result of a call, with the bytes that XLA's memory may have."""
    return device.memory(16, 0xA5).view(np.uint32)


# ── tests ───────────────────────────────────────────────────────────────────────────────────────────────────────


def lists_of(case: Case) -> list[device.Array]:
    """Returns the indices and, if there are any, the lengths of a case."""
    starts, lengths = (case.arguments.get(name) for name in ("write_indices", "lengths"))
    first = np.zeros(case.cache.shape[:1], np.int64) if starts is None else np.asarray(starts)
    return [first] if lengths is None else [first, np.asarray(lengths)]


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_call_writes_and_refuses_what_the_cpu_does(is_in_place: bool, policy: str) -> None:
    host, found = Host(), {"written": 0, "skipped": 0, "refused": 0}
    for case in cases(11, 500, operators=["tensor_scatter"], dtypes=None, extensions=["lengths"]):
        lists = lists_of(case)
        if not {it.dtype.name for it in (case.cache, case.update)} <= {*NUMBERS}:
            continue
        wanted, refused, skipped = case.cache.copy(), None, 0
        try:
            arguments = {**case.arguments, "out_of_range": policy}
            skipped = support.in_place(Case(**{**vars(case), "arguments": arguments}), wanted, case.update)
        except kvscatter.Error as error:
            refused = error
        memories = [guarded(case.cache), guarded(case.update), guarded(np.zeros_like(case.cache))]
        past, update, separate = (array for array, _ in memories)
        present, words = past if is_in_place else separate, status()
        attributes = {"axis": case.arguments.get("axis", -2), "mode": case.arguments.get("mode", "linear")}
        failed = host.run(
            [past, update, *map(device.copy, lists)],
            [present, words],
            **attributes,
            skips=policy == "skip",
        )
        host.stream.synchronize()
        if refused is None:
            assert failed is None and words[0] == skipped, case
            found["skipped" if skipped else "written"] += 1
        elif policy == "skip" and refused.argument == "lengths" and "index" in refused.fields:
            # A device counts these samples, too.
            assert failed is None and words[0] > 0, case
            continue
        else:
            is_position = isinstance(refused, kvscatter.PositionError)
            assert failed is not None and failed[0] == (OUT_OF_RANGE if is_position else INVALID_ARGUMENT)
            assert failed[1] == str(refused) or not is_position, case
            found["refused"] += 1
        if is_in_place or refused is not None:
            assert support.bits(past) == support.bits(wanted), case
        else:
            assert support.bits(present) == support.bits(wanted), case
            assert support.bits(past) == support.bits(case.cache), case
        assert support.bits(update) == support.bits(case.update), case
        for array, canvas in memories:
            assert (canvas[:GUARD] == 0xA5).all() and (canvas[GUARD + array.nbytes :] == 0xA5).all(), case
    assert found["written"] > 50 and found["refused"] > 20 and (found["skipped"] > 5) == (policy == "skip"), (
        found
    )


def arrays() -> tuple[list[device.Array], list[device.Array]]:
    """Returns the arguments and the results of a small call."""
    cache, update = device.copy(np.zeros((2, 4, 8))), device.copy(np.ones((2, 1, 8)))
    return [cache, update, device.copy(np.array([3, 0], np.int32))], [cache, status()]


ATTRIBUTES: dict[str, Any] = {"axis": 1, "mode": "linear", "skips": False}


@device.only_fake
def test_calls_that_skip_do_not_wait() -> None:
    host = Host()
    for skips in (False, True):
        arguments, results = arrays()
        before = device.calls("cuStreamSynchronize")
        assert host.run(arguments, results, **{**ATTRIBUTES, "skips": skips}) is None
        assert device.calls("cuStreamSynchronize") - before == (0 if skips else 1)
        assert bool(arguments[0].any()) != skips
        host.stream.synchronize()
        assert arguments[0].any()


@device.only_fake
def test_errors_of_the_driver_are_errors_of_the_call() -> None:
    for name in ("cuCtxGetCurrent", "cuMemsetD8Async", "cuLaunchKernel", "cuStreamSynchronize"):
        host, (arguments, results) = Host(), arrays()
        with device.failing(name, 700):
            failed = host.run(arguments, results, **ATTRIBUTES)
        assert failed is not None and failed[0] == INTERNAL and name in failed[1], failed
        host.stream.synchronize()


def test_programs_that_the_package_does_not_make_are_refused() -> None:
    arguments, [cache, words] = arrays()
    unsigned = device.copy(np.zeros(2, np.uint32))
    for given, results, attributes, message in [
        (arguments, [cache], {}, "there must be a second result status"),
        (arguments, [cache, words[:2]], {}, "there must be a second result status"),
        (arguments, [cache, words.view(np.int32)], {}, "there must be a second result status"),
        ([*arguments[:2], unsigned], [cache, words], {}, "write_indices has XLA type 8, must have signed"),
        ([*arguments, unsigned], [cache, words], {}, "lengths has XLA type 8, must have signed"),
        ([*arguments[:2], arguments[2][:1]], [cache, words], {}, "write_indices has 1"),
        (arguments, [cache, words], {"skips": 1}, "attribute skips has XLA type 5"),
    ]:
        failed = Host().run(given, results, **{**ATTRIBUTES, **attributes})
        assert failed is not None and message in failed[1], failed
    failed = Host(has_stream=False).run(arguments, [cache, words], **ATTRIBUTES)
    assert failed is not None and "no stream" in failed[1]
    assert not cache.any()
