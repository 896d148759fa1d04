"""Calls kvscatter while a first call of it runs: `python first_calls.py (signal | finalizer) CALL...`.

Whenever a call runs Python code (an import, for example), a signal handler or the finalizer of an object repeats
the call. The program fails if nothing repeats a call. If a call waits for itself, the program prints where, and fails.
Each call runs in its own process, because a call can make values that later ones need.
"""

from __future__ import annotations

import builtins
import faulthandler
import gc
import os
import signal
import sys
from collections import UserList
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import kvscatter
from kvscatter import KvSession
from kvscatter._native import OnnxModel
from kvscatter.onnx_backend import ModelError

MODEL = Path(__file__).parents[3] / "testdata/mobius-llama-static/model.onnx"

cache, update = np.zeros((1, 4, 1), np.float32), np.ones((1, 1, 1), np.float32)


class Rows(np.ndarray[Any, Any]):
    """An array of another class than NumPy's."""


class Index:
    def __index__(self) -> int:
        return 1


def write(cache: Any = cache, write_indices: Any = (1,)) -> Callable[[], object]:
    return lambda: kvscatter.tensor_scatter_(cache, update, write_indices)


def tensor() -> Callable[[], object]:
    import torch

    tensors = torch.zeros(1, 4, 1), torch.ones(1, 1, 1), torch.tensor([1])
    return lambda: kvscatter.tensor_scatter_(*tensors)


def plan() -> kvscatter.Plan:
    return kvscatter.plan((1, 4, 1), (1, 3, 1), [2], mode="circular", dtype="float32")


def memory() -> Callable[[], object]:
    opened = KvSession(MODEL, batch=1, threads=1)
    return opened.memory


def register() -> Callable[[], object]:
    import onnxruntime as onnxruntime

    return kvscatter.onnxruntime.register


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "subclass": lambda: write(cache.view(Rows)),
    "sequence": lambda: write(write_indices=UserList([1])),
    "index": lambda: write(write_indices=[Index()]),
    "refused": lambda: write(write_indices=[4]),
    "blocks": lambda: lambda: plan().blocks,
    "segments": lambda: lambda: plan().segments,
    "driver": lambda: kvscatter.cuda.driver_version,
    "model": lambda: lambda: OnnxModel.load("missing.onnx"),
    "tensor": tensor,
    "open": lambda: lambda: KvSession(MODEL, batch=1, threads=1),
    "memory": memory,
    "generate": lambda: lambda: kvscatter.generate(MODEL, [[1]], 1, threads=1),
    "register": register,
}
"""Functions that prepare a call and return it."""


ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "refused": (kvscatter.PositionError,),
    "driver": (kvscatter.errors.CudaError,),  # on machines without a driver
    "model": (ModelError,),
}
"""The errors of calls that fail."""


class Found:
    """An object that only the collector can free."""

    def __init__(self, finalize: Callable[[], None]) -> None:
        self.finalize, self.itself = finalize, self

    def __del__(self) -> None:
        self.finalize()


def main(how: str, names: list[str]) -> None:
    for name in names:
        child = os.fork()  # an import takes longer than all calls
        if child == 0:
            check(how, name)
            return
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit(f"{name} failed")


def check(how: str, name: str) -> None:
    """Makes a call, and repeats it while it runs."""
    call, repeats = CALLS[name](), 0

    def run() -> None:
        try:  # `suppress` is Python code, which would be interrupted
            call()
        except ERRORS.get(name, ()):
            pass

    def repeat(*_: object) -> None:
        nonlocal repeats
        if repeats < 10:
            run()
            repeats += 1

    def collect() -> None:
        Found(repeat)
        gc.collect()

    interrupt = collect if how == "finalizer" else lambda: signal.raise_signal(signal.SIGUSR1)

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (frame.f_code.co_filename != __file__ or frame.f_code is importing.__code__):
            interrupt()

    plain = builtins.__import__

    def importing(*arguments: Any, **keywords: Any) -> Any:
        return plain(*arguments, **keywords)

    signal.signal(signal.SIGUSR1, repeat)
    builtins.__import__ = importing
    gc.freeze()
    ignored: list[sys.UnraisableHookArgs] = []  # errors of a finalizer
    sys.unraisablehook = ignored.append
    faulthandler.dump_traceback_later(60, exit=True)
    sys.setprofile(hook)
    run()
    sys.setprofile(None)
    assert not ignored, ignored[0].exc_value
    # No Python code runs while a driver is found.
    assert repeats > 0 or name == "driver", f"nothing repeated {name}"
    print(name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
