"""The examples with PyTorch of the pages, run as they stand on smaller caches. PyTorch is played."""

from __future__ import annotations

import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import device
import numpy as np
import pytest
import versions
from device import Dlpack, Stream

DOCS = pathlib.Path(__file__).parents[4] / "docs"
CAPACITY = 16


class Torch:
    """Of PyTorch what the examples use. What tensors do is done in the order of the current stream, and captured."""

    def __init__(self) -> None:
        self.stream, self.graph = Stream(), None  # type: tuple[Stream, Graph | None]

    def do(self, work: Callable[[], None]) -> None:
        if self.graph is None:
            self.stream.synchronize()
            work()
        else:
            self.graph.put(work)

    def new(self, *shape: int, dtype: Any, device: Any, fill: float = 0) -> Tensor:
        assert device in ("cuda", "cuda:0")
        return Tensor(np.full(shape, fill, dtype), self)

    def modules(self) -> dict[str, types.ModuleType]:
        names = ("torch", "torch.cuda", "torch.autograd", "torch.autograd.graph")
        modules = {name: types.ModuleType(name) for name in names}
        modules["torch"].__dict__.update(
            cuda=modules["torch.cuda"],
            float16=np.float16,
            int64=np.int64,
            zeros=self.new,
            empty=lambda *shape, **of: self.new(*shape, **of, fill=7),
        )
        modules["torch.cuda"].__dict__.update(
            CUDAGraph=Graph,
            graph=self.capturing,
            current_stream=lambda number: types.SimpleNamespace(
                cuda_stream=self.stream.ptr, synchronize=self.stream.synchronize
            ),
            synchronize=self.stream.synchronize,
        )
        modules["torch.autograd.graph"].__dict__["increment_version"] = versions.increment_version
        return modules

    @contextmanager
    def capturing(self, graph: Graph) -> Iterator[None]:
        self.stream.synchronize()
        before, self.stream, self.graph = self.stream, graph.stream, graph
        graph.stream.begin_capture()
        yield
        graph.steps.append(graph.stream.end_capture())
        self.stream, self.graph = before, None


class Graph:
    """Captured launches, and between them what tensors do."""

    def __init__(self) -> None:
        self.stream, self.steps = Stream(), []  # type: tuple[Stream, list[Callable[[], None]]]

    def put(self, work: Callable[[], None]) -> None:
        self.steps += [self.stream.end_capture(), work]
        self.stream.begin_capture()

    def replay(self) -> None:
        for step in self.steps:
            step()
            self.stream.synchronize()


class Tensor(Dlpack):
    """On the device that is played."""

    __module__ = "torch"
    requires_grad, _version, device = False, 0, "cuda:0"

    def __init__(self, array: device.Array, torch: Torch) -> None:
        super().__init__(device.copy(array))
        self.torch = torch

    def is_neg(self) -> bool:
        return False

    is_conj = is_neg

    def copy_(self, other: Any) -> Tensor:
        self.torch.do(lambda: np.copyto(self.array, other.array if isinstance(other, Tensor) else other()))
        return self

    def add_(self, number: int) -> Tensor:
        return self.copy_(lambda: self.array + number)

    __iadd__ = add_


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    played = Torch()
    for name, module in played.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return played


def examples(page: str) -> list[str]:
    """Its examples with PyTorch, on caches that are filled sooner."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = re.split(r"^##+ (?:With )?PyTorch$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [
        block.replace("4096", str(CAPACITY)).replace("range(100)", f"range({CAPACITY})") for block in blocks
    ]


def test_the_page_of_python(torch: Torch) -> None:
    names: dict[str, Any] = {
        "next_positions": lambda step: torch.new(8, dtype=np.int64, device="cuda", fill=step)
    }
    eager, graph = examples("python/cuda.md")
    exec(eager, names)
    caches = [tensor.array for tensor in (*names["k"], *names["v"])]
    assert len(caches) == 64
    for cache in caches:
        assert (cache[:, :, 0] == 7).all() and not cache[:, :, 1:].any()
    exec(graph, names)
    for cache in caches:
        assert (cache == 7).all(), "every slot was a position once"
    names["write"].status.check()


def test_the_page_of_rust(torch: Torch) -> None:
    steps = iter(range(1, CAPACITY + 1))

    def model(*, out: tuple[Tensor, Tensor]) -> None:
        k, v = out
        k.copy_(lambda: np.full(k.array.shape, next(steps)))
        v.copy_(lambda: k.array + 100)

    names: dict[str, Any] = {"model": model}
    (example,) = examples("cuda.md")
    exec(example, names)
    assert (names["positions"].array == CAPACITY).all()
    expected = np.arange(1, CAPACITY + 1).reshape(-1, 1)
    assert (names["k"].array == expected).all()
    assert (names["v"].array == expected + 100).all()
