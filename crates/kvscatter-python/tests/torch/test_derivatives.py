"""Compares forward mode, ``torch.func`` and ``torch.vmap`` with the write of the tangents, or item by
item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp

import kvscatter
import kvscatter.torch
from support import refused

Write = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def in_place(cache: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    cache = cache.clone()
    kvscatter.torch.tensor_scatter_(cache, *arguments, **options)
    return cache


OPTIONS: list[dict[str, Any]] = [
    {"mode": "circular"},
    {"mode": "circular", "lengths": torch.tensor([2, 1])},
    {"lengths": torch.tensor([2, 1])},
    {"axis": 1, "write_indices": None},
]


@pytest.fixture(params=OPTIONS, ids=["ring", "ring-lengths", "lengths", "axis"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"write_indices": torch.tensor([1, 4]), **request.param}


@pytest.fixture(params=[kvscatter.torch.tensor_scatter, in_place], ids=["functional", "in-place"])
def write(request: pytest.FixtureRequest, options: dict[str, Any]) -> Write:
    return lambda past, update: request.param(past, update, **options)


def tensors() -> list[torch.Tensor]:
    """Returns a cache, an update, and their tangents."""
    torch.manual_seed(0)
    shapes = [(2, 3, 5, 2), (2, 3, 2, 2)] * 2
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def updated(options: dict[str, Any], update: torch.Tensor) -> torch.Tensor:
    return update if "axis" not in options else torch.cat([update, update, update[:, :, :1]], 2)[:, :2]


def test_forward_mode(write: Write, options: dict[str, Any]) -> None:
    past, update, of_past, of_update = tensors()
    update, of_update = updated(options, update), updated(options, of_update)
    cases = [(of_past, of_update), (of_past, None), (None, of_update)]
    for one, other in cases:
        zeros = torch.zeros_like(past), torch.zeros_like(update)
        want = write(zeros[0] if one is None else one, zeros[1] if other is None else other)
        with forward_ad.dual_level():
            result = write(
                past if one is None else forward_ad.make_dual(past, one),
                update if other is None else forward_ad.make_dual(update, other),
            )
            primal, tangent = forward_ad.unpack_dual(result)
        assert torch.equal(primal, write(past, update))
        assert tangent is not None and torch.equal(tangent, want)
    value, tangent = jvp(write, (past, update), (of_past, of_update))
    assert torch.equal(value, write(past, update)) and torch.equal(tangent, write(of_past, of_update))


@pytest.mark.parametrize("start", [2**63 - 1, 2**63 - 2, -(2**63), 5])
@pytest.mark.parametrize("length", [1, 3])
def test_a_recorded_write_goes_where_a_plain_one_does(start: int, length: int) -> None:
    past, update = torch.zeros(1, 1, 7, 1), torch.arange(1.0, 4.0).reshape(1, 1, 3, 1)
    options: dict[str, Any] = {"mode": "circular", "lengths": torch.tensor([length])}
    want = kvscatter.torch.tensor_scatter(past, update, torch.tensor([start]), **options)
    update.requires_grad_()
    got = kvscatter.torch.tensor_scatter(past, update, torch.tensor([start]), **options)
    assert torch.equal(got, want)
    got.sum().backward()
    assert update.grad is not None
    assert update.grad.flatten().tolist() == [1.0] * length + [0.0] * (3 - length)


def test_transforms_agree(write: Write, options: dict[str, Any]) -> None:
    past, update, *_ = tensors()
    update = updated(options, update)

    def loss(past: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return (write(past, update) ** 3).sum()

    leaves = past.clone().requires_grad_(), update.clone().requires_grad_()
    want = torch.autograd.grad(loss(*leaves), leaves)
    gradients = grad(loss, (0, 1))(past, update)
    pulled = vjp(loss, past, update)[1](torch.tensor(1.0, dtype=torch.float64))
    reverse, forward = (way(write, (0, 1))(past, update) for way in (jacrev, jacfwd))
    for place in (0, 1):
        assert torch.equal(gradients[place], want[place]) and torch.equal(pulled[place], want[place])
        assert torch.equal(reverse[place], forward[place])
    second = hessian(lambda update: loss(past, update))(update)
    twice = grad(lambda update: grad(lambda update: loss(past, update))(update).sum())(update)
    torch.testing.assert_close(second.sum(dim=(4, 5, 6, 7)), twice)


def test_vmap_takes_items_as_samples() -> None:
    past, update = torch.randn(4, 2, 3, 5, 2), torch.randn(2, 4, 3, 2, 2)
    starts = torch.tensor([[0, 1], [2, 3], [3, 3], [1, 0]])
    want = torch.stack([kvscatter.torch.tensor_scatter(past[i], update[:, i], starts[i]) for i in range(4)])
    assert torch.equal(torch.vmap(kvscatter.torch.tensor_scatter, (0, 1, 0))(past, update, starts), want)

    def write(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        kvscatter.torch.tensor_scatter_(cache, update, starts)
        return cache.sum()

    for dimension in range(5):  # one of them is next to the batch
        cache = past.movedim(0, dimension).contiguous()
        torch.vmap(write, (dimension, 1, 0))(cache, update, starts)
        assert torch.equal(cache.movedim(dimension, 0), want)

    def loss(past: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return (kvscatter.torch.tensor_scatter(past, update, starts) ** 2).sum()

    mapped = torch.vmap(grad(loss, (0, 1)), (0, 1, 0))(past, update, starts)
    for item in range(4):
        for got, one in zip(
            mapped, grad(loss, (0, 1))(past[item], update[:, item], starts[item]), strict=True
        ):
            assert torch.equal(got[item], one)


def test_calls_that_would_lose_a_derivative_are_refused() -> None:
    cache, update, _, tangent = tensors()
    before = cache.clone()

    def captured(update: torch.Tensor) -> torch.Tensor:
        kvscatter.torch.tensor_scatter_(cache, update)
        return cache.sum()

    with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
        grad(captured)(update)
    with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
        jvp(captured, (update,), (tangent,))
    with pytest.raises(kvscatter.OptionError, match="shared by the items of vmap"):
        torch.vmap(captured)(torch.stack([update, update]))
    prepared, plan = kvscatter.prepare(cache, update), kvscatter.plan(cache, update)
    with forward_ad.dual_level():
        dual, whole = forward_ad.make_dual(update, tangent), forward_ad.make_dual(cache, before)
        for plain in (kvscatter.tensor_scatter, kvscatter.tensor_scatter_, prepared, plan.write):
            error = refused("tensor", "update", plain, cache, dual)
            assert "has a tangent" in str(error)
        for plain in (kvscatter.tensor_scatter_, prepared, plan.write):
            refused("tensor", "cache", plain, whole, update)
        assert kvscatter.tensor_scatter_(cache.clone(), update) == 0
    for transformed in (grad, torch.vmap):
        with pytest.raises(kvscatter.ArrayError):
            transformed(lambda update: kvscatter.tensor_scatter(cache, update).sum())(update[None][0])
    assert torch.equal(cache, before)


def test_positions_that_do_not_fit_are_refused_under_transforms() -> None:
    past, update, _, tangent = tensors()
    starts = torch.tensor([0, 4])

    def call(update: torch.Tensor) -> torch.Tensor:
        return kvscatter.torch.tensor_scatter(past, update, starts).sum()

    calls: list[Callable[[], object]] = [
        lambda: grad(call)(update),
        lambda: jvp(call, (update,), (tangent,)),
        lambda: call(update.clone().requires_grad_()),
        lambda: torch.vmap(call)(update[None]),
    ]
    for transformed in calls:
        refused("start_out_of_range", "write_indices", transformed, of=kvscatter.PositionError)


@pytest.mark.parametrize("write", [kvscatter.torch.tensor_scatter, in_place])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_transforms(write: Callable[..., torch.Tensor], backend: str) -> None:
    past, update, of_past, of_update = tensors()
    starts = torch.tensor([1, 3])

    def through_jvp(*given: torch.Tensor) -> Any:
        return jvp(lambda past, update: write(past, update, starts), given[:2], given[2:])

    def through_dual_numbers(*given: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            dual = [forward_ad.make_dual(*pair) for pair in zip(given[:2], given[2:], strict=True)]
            return forward_ad.unpack_dual(write(*dual, starts)).tangent

    def through_grad(*given: torch.Tensor) -> Any:
        return grad(lambda past, update: (write(past, update, starts) ** 2).sum(), (0, 1))(*given[:2])

    for function in (through_jvp, through_dual_numbers, through_grad):
        torch.compiler.reset()
        compiled = torch.compile(function, backend=backend)(past, update, of_past, of_update)
        torch.testing.assert_close(compiled, function(past, update, of_past, of_update))
