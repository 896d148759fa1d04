"""A simulation of PyTorch on the simulated driver. The tests use PyTorch itself if it has a device."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import device
import numpy as np
from device import Dlpack, Stream


def values(tensor: Any) -> device.Array:
    """Returns the values of a tensor, simulated or not, after all writes to it have finished."""
    return tensor.array if isinstance(tensor, Tensor) else tensor.cpu().numpy()


#: The numbers of tensors in the calls of `increment_version`, which the package looks up once per process.
counted: list[int] = []


def increment_version(tensors: Any) -> None:
    """Records how many tensors were written, as PyTorch's function of this name."""
    counted.append(len(tensors))


class Torch:
    """The part of PyTorch that the tests use. Tensor operations run in the order of the current stream and
    are captured."""

    def __init__(self) -> None:
        self.stream, self.graph = Stream(), None  # type: tuple[Stream, Graph | None]

    def do(self, work: Callable[[], None]) -> None:
        if self.graph is None:
            self.stream.synchronize()
            work()
        else:
            self.graph.put(work)

    def full(self, shape: tuple[int, ...], fill: float, *, dtype: Any, device: Any) -> Tensor:
        assert device in ("cuda", "cuda:0")
        return Tensor(np.full(shape, fill, dtype), self)

    def modules(self) -> dict[str, types.ModuleType]:
        names = ("torch", "torch.cuda", "torch.autograd", "torch.autograd.graph")
        modules = {name: types.ModuleType(name) for name in names}
        modules["torch"].__dict__.update(
            cuda=modules["torch.cuda"],
            float16=np.float16,
            int64=np.int64,
            full=self.full,
            zeros=lambda *shape, **of: self.full(shape, 0, **of),
            ones=lambda *shape, **of: self.full(shape, 1, **of),
            arange=lambda count, *, dtype, device: Tensor(np.arange(count, dtype=dtype), self),
        )
        modules["torch.cuda"].__dict__.update(
            CUDAGraph=Graph,
            graph=self.capturing,
            Stream=Stream,
            stream=self.on,
            current_stream=lambda number: types.SimpleNamespace(
                cuda_stream=self.stream.ptr, synchronize=self.stream.synchronize
            ),
            synchronize=lambda: device.call("cuCtxSynchronize"),
        )
        modules["torch.autograd.graph"].__dict__["increment_version"] = increment_version
        return modules

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def capturing(self, graph: Graph) -> Iterator[None]:
        self.stream.synchronize()
        before, self.stream, self.graph = self.stream, graph.stream, graph
        graph.stream.begin_capture()
        yield
        graph.steps.append(graph.stream.end_capture())
        self.stream, self.graph = before, None


class Graph:
    """Captured launches, and the tensor operations between them."""

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
    """A tensor on the simulated device."""

    __module__ = "torch"
    requires_grad, _version, device = False, 0, "cuda:0"

    def __init__(self, array: device.Array, torch: Torch) -> None:
        super().__init__(device.copy(array))
        self.torch = torch

    def is_neg(self) -> bool:
        return False

    is_conj = is_neg

    def __getitem__(self, index: int) -> Tensor:
        return self.sharing(self.array[index])

    def view(self, *shape: int) -> Tensor:
        return self.sharing(self.array.reshape(shape))

    def sharing(self, array: device.Array) -> Tensor:
        assert np.shares_memory(array, self.array)
        other = copy.copy(self)
        other.array = array
        return other

    def copy_(self, other: Any) -> Tensor:
        self.torch.do(lambda: np.copyto(self.array, other.array if isinstance(other, Tensor) else other()))
        return self

    def add_(self, number: int) -> Tensor:
        return self.copy_(lambda: self.array + number)

    __iadd__ = add_
