"""Tests the operators with `opcheck`, `torch.compile` and `torch.export`."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch.export import Dim

import kvscatter
import kvscatter.torch

OPS = torch.ops.kvscatter
BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param(
        "inductor", marks=pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
    ),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates each test from compiled code of other tests and of earlier runs on disk."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    torch.compiler.reset()


def example(**options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    past, update = (torch.randn(2, 3, rows, 4, generator=generator).to(**options) for rows in (16, 5))
    return past, update, torch.tensor([1, 6])


LENGTHS = torch.tensor([2, 0])


CALLS: list[tuple[torch.dtype, tuple[Any, ...]]] = [
    (torch.float32, ()),
    (torch.float32, (-2, "circular")),
    (torch.float32, (2, "linear", LENGTHS)),
    (torch.bfloat16, (-2, "circular", LENGTHS)),
    (torch.float64, (2, "circular")),
    (torch.int8, (-2, "linear")),
    (torch.bool, (-2, "circular")),
]
LAYOUTS = ["dense", "strided", "gradient"]


@pytest.mark.parametrize(
    ("layout", "dtype", "rest"),
    [
        (layout, *call)
        for layout in LAYOUTS
        for call in CALLS
        if layout != "gradient" or call[0].is_floating_point
    ],
)
@pytest.mark.parametrize("name", ["tensor_scatter", "tensor_scatter_"])
def test_opcheck(name: str, layout: str, dtype: torch.dtype, rest: tuple[Any, ...]) -> None:
    past, update, starts = example(dtype=dtype)
    if layout == "strided":
        past, update = past.transpose(0, 1).contiguous().transpose(0, 1), update[..., :1].expand(2, 3, 5, 4)
    if layout == "gradient":
        update.requires_grad_()
        past = past.requires_grad_() if name == "tensor_scatter" else past
    torch.library.opcheck(getattr(OPS, name).default, (past, update, starts, *rest))


def test_opcheck_without_indices_and_with_int32() -> None:
    past, update, starts = example()
    for given in (None, starts.int()):
        torch.library.opcheck(OPS.skips.default, (past, update, given))
        torch.library.opcheck(OPS.tensor_scatter.default, (past, update, given))
        torch.library.opcheck(OPS.tensor_scatter_.default, (past, update, given))


def step(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """A decoding step that writes in a linear cache, writes in a view of it in circular mode, and reads."""
    kvscatter.torch.tensor_scatter_(cache, update * 2, starts)
    kvscatter.torch.tensor_scatter_(cache[:, 1:], update[:, 1:], starts + 5, mode="circular")
    present = kvscatter.torch.tensor_scatter(cache, update, starts, axis=2, lengths=starts * 0 + 1)
    return cache.sum(-1) + present.amax(-1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(backend: str, dynamic: bool) -> None:
    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    cache, update, starts = example()
    eager = cache.clone()
    address = cache.data_ptr()
    for move in range(3):  # different positions must not cause a recompilation
        with torch.compiler.set_stance("default" if move == 0 else "fail_on_recompile"):
            here = (starts + move) % 7
            torch.testing.assert_close(compiled(cache, update, here), step(eager, update, here))
        assert torch.equal(cache, eager) and cache.data_ptr() == address
    if dynamic:
        longer, more, starts = torch.zeros(3, 7, 20, 6), torch.randn(3, 7, 9, 6), torch.tensor([0, 11, 4])
        eager = longer.clone()
        with torch.compiler.set_stance("fail_on_recompile"):
            torch.testing.assert_close(compiled(longer, more, starts), step(eager, more, starts))
        assert torch.equal(longer, eager)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_gradients(backend: str) -> None:
    def loss(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        kvscatter.torch.tensor_scatter_(cache, update, starts)
        return (kvscatter.torch.tensor_scatter(cache, update, starts + 1) ** 2).sum()

    def gradients(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cache, update, starts = example()
        starts = starts - 1
        update.requires_grad_()
        value = (
            call(cache, update, starts) + (cache * 3).sum()
        )  # uses the cache's gradient outside of the graph
        return torch.autograd.grad(value, update)[0], cache.detach()

    compiled = gradients(torch.compile(loss, fullgraph=True, backend=backend))
    for got, want in zip(compiled, gradients(loss), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_at_run_time_are_this_packages(backend: str) -> None:
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    cache, update, starts = example()
    compiled(cache, update, starts)
    before = cache.clone()
    with pytest.raises(kvscatter.PositionError) as caught:
        compiled(cache, update, starts + 10)
    assert caught.value.value == 16 and torch.equal(cache, before)


class Decoder(torch.nn.Module):
    """A layer that keeps its cache in a buffer."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 3, 8, 4))

    def forward(self, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        kvscatter.torch.tensor_scatter_(self.cache, self.project(update), starts)
        return self.cache * 2


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("decompose", [False, True])
def test_export(strict: bool, decompose: bool) -> None:
    module = Decoder()
    update, starts = torch.randn(2, 3, 2, 4), torch.tensor([1, 6])
    rows = Dim("rows", min=1, max=8)
    shapes = {"update": {2: rows}, "starts": None}
    program = torch.export.export(module, (update, starts), dynamic_shapes=shapes, strict=strict)
    written = program.graph.find_nodes(op="call_function", target=OPS.tensor_scatter_.default)
    assert len(written) == 1, "the write stays one operator, in place"
    if decompose:
        program = program.run_decompositions()
    exported = program.module()
    for call in (update, torch.randn(2, 3, 5, 4)):
        with torch.no_grad():
            got, want = exported(call, starts % 4), module(call, starts % 4)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(exported.cache, module.cache)


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_all_dimensions_dynamic(strict: bool) -> None:
    class Write(torch.nn.Module):
        def forward(self, past: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
            return kvscatter.torch.tensor_scatter(past, update, starts, mode="circular")

    batch, heads = Dim("batch"), Dim("heads")
    capacity, rows = Dim("capacity", min=16), Dim("rows", max=16)
    shapes = ({0: batch, 1: heads, 2: capacity}, {0: batch, 1: heads, 2: rows}, {0: batch})
    arguments = torch.randn(2, 3, 16, 4), torch.randn(2, 3, 4, 4), torch.tensor([1, 9])
    exported = torch.export.export(Write(), arguments, dynamic_shapes=shapes, strict=strict).module()
    other = torch.randn(3, 2, 20, 4), torch.randn(3, 2, 7, 4), torch.tensor([18, 0, 5])
    assert torch.equal(exported(*other), Write()(*other))


def test_a_sequence_of_positions_compiles() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(cache: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        kvscatter.torch.tensor_scatter_(cache, update, [1, cache.shape[2] - 10])
        return cache + 1

    past, update, starts = example()
    want = OPS.tensor_scatter(past, update, starts) + 1
    torch.testing.assert_close(step(past, update), want)
