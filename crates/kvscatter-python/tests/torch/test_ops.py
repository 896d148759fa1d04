"""Tests the operators in eager mode, with adversarial cases of the oracle, gradients, and calls that must
fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import kvscatter
import kvscatter.torch
from kvscatter import testing
from support import refused

OPS = torch.ops.kvscatter

# These types have the same bits in both libraries. NumPy lacks some of the types that ml_dtypes provides.
DTYPES: dict[Any, torch.dtype] = {
    np.bool_: torch.bool,
    np.int8: torch.int8,
    np.uint16: torch.uint16,
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.complex64: torch.complex64,
    np.complex128: torch.complex128,
    ml_dtypes.bfloat16: torch.bfloat16,
    ml_dtypes.float8_e4m3fn: torch.float8_e4m3fn,
    ml_dtypes.float8_e5m2: torch.float8_e5m2,
    ml_dtypes.float8_e8m0fnu: torch.float8_e8m0fnu,
}
OF_NAME = {np.dtype(numpy).name: dtype for numpy, dtype in DTYPES.items()}


def tensor(array: Any) -> torch.Tensor | None:
    """Returns a tensor with the array's bits, or None for None."""
    if array is None:
        return None
    raw = torch.from_numpy(array.copy(order="C").reshape(-1).view(np.uint8))
    return raw.view(OF_NAME[array.dtype.name]).reshape(array.shape)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compares bit for bit: NaNs with the same payload are equal, and zeros of different signs are not."""
    # A single element counts as contiguous with any stride, but only a stride of 1 can be viewed as bytes.
    one, other = (it.clone(memory_format=torch.contiguous_format).reshape(-1) for it in (one, other))
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def gapped(dense: torch.Tensor) -> torch.Tensor:
    """Returns the same values in a view with gaps between rows and with the first dimension innermost in
    memory."""
    if dense.dim() < 2:
        return dense.clone()
    canvas = torch.zeros([*dense.shape[1:-1], dense.shape[-1] + 3, dense.shape[0]], dtype=dense.dtype)
    view = canvas.movedim(-1, 0)[..., 1:-2]
    return view.copy_(dense)


@pytest.mark.parametrize("extensions", [(), ("lengths",)], ids=["onnx", "lengths"])
def test_adversarial_cases(extensions: tuple[Any, ...]) -> None:
    seen = refused = 0
    for case in testing.cases(
        5, 600, operators=["tensor_scatter"], dtypes=list(DTYPES), extensions=extensions
    ):
        given = case.arguments
        if {array.dtype.name for array in given.values() if isinstance(array, np.ndarray)} - set(OF_NAME):
            continue  # the case has two different types, and PyTorch lacks one of them
        past, update = tensor(given["past_cache"]), tensor(given["update"])
        starts, lengths = tensor(given["write_indices"]), tensor(given.get("lengths"))
        assert past is not None and update is not None
        rest = (starts, given["axis"], given["mode"], lengths)
        before = past.clone()
        cache = gapped(past)
        if case.expected is None:
            refused += 1
            with pytest.raises(kvscatter.Error):
                OPS.tensor_scatter(past, update, *rest)
            with pytest.raises(kvscatter.Error):
                OPS.tensor_scatter_(cache, update, *rest)
            assert same(cache, before), case.name
        else:
            seen += 1
            expected = tensor(case.expected)
            assert expected is not None
            present = OPS.tensor_scatter(past, gapped(update), *rest)
            assert present.is_contiguous() and same(present, expected), case.name
            OPS.tensor_scatter_(cache, update, *rest)
            assert same(cache, expected), case.name
        assert same(past, before), case.name
    assert seen > 200 and refused > 20


def test_the_functions_are_the_operators() -> None:
    past, update = torch.zeros(2, 3, 8, 4), torch.randn(2, 3, 2, 4)
    starts, lengths = torch.tensor([7, 3], dtype=torch.int32), torch.tensor([2, 1])
    want = OPS.tensor_scatter(past, update, starts, -2, "circular", lengths)
    got = kvscatter.torch.tensor_scatter(past, update, starts, mode="circular", lengths=lengths)
    kvscatter.torch.tensor_scatter_(past, update, starts, mode="circular", lengths=lengths)
    assert torch.equal(got, want) and torch.equal(past, want)


def test_positions_may_be_a_sequence() -> None:
    past, update = torch.zeros(2, 3, 8, 4), torch.randn(2, 3, 2, 4)
    want = kvscatter.torch.tensor_scatter(past, update, torch.tensor([5, 3]), lengths=torch.tensor([2, 1]))
    assert torch.equal(kvscatter.torch.tensor_scatter(past, update, [5, 3], lengths=(np.int32(2), 1)), want)
    kvscatter.torch.tensor_scatter_(past, update, range(5, 1, -2), lengths=[2, 1])
    assert torch.equal(past, want)
    for call in (kvscatter.torch.tensor_scatter, kvscatter.torch.tensor_scatter_):
        for nonsense, what in (
            ([True, 1], "bool"),
            ([0, 1.5], "float"),
            ("01", "str"),
            (3, "int"),
            ({0, 1}, "set"),
        ):
            error = refused("not_integers", "write_indices", call, past, update, nonsense)
            assert isinstance(error, kvscatter.ElementTypeError) and f" {what}: must" in str(error)
            refused("not_integers", "lengths", call, past, update, lengths=nonsense)
        with pytest.raises(kvscatter.PositionError, match=r"^write_indices\[1\] = 7"):
            call(past, update, [0, 7])
    assert torch.equal(past, want)


def test_a_write_is_seen_by_autograd_as_a_change() -> None:
    cache = torch.zeros(1, 1, 4, 2)
    version = cache._version
    OPS.tensor_scatter_(cache, torch.ones(1, 1, 1, 2))
    assert cache._version > version


# ── gradients ───────────────────────────────────────────────────────────────────────────────────────────────────


def in_place(cache: torch.Tensor, *rest: Any) -> torch.Tensor:
    cache = cache.clone()
    OPS.tensor_scatter_(cache[:, 1:], *rest)
    return cache


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("lengths", [None, torch.tensor([1, 0, 2])], ids=["all", "lengths"])
@pytest.mark.parametrize("write", [OPS.tensor_scatter, in_place], ids=["functional", "in-place"])
def test_gradients(
    write: Callable[..., torch.Tensor], lengths: torch.Tensor | None, mode: str, axis: int
) -> None:
    past = torch.randn(3, 5, 5, dtype=torch.float64, requires_grad=True)
    cut = past if write is OPS.tensor_scatter else past[:, 1:]
    shape = [2 if dimension == axis % 3 else size for dimension, size in enumerate(cut.shape)]
    update = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    starts = torch.tensor([0, 2, 1]) if mode == "linear" else torch.tensor([-1, 3, 7])

    def call(past: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return write(past, update, starts, axis, mode, lengths)

    every = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(call, (past, update), **every)
    assert torch.autograd.gradgradcheck(call, (past, update), check_fwd_over_rev=True)


def test_a_gradient_that_is_one_value_for_all_elements() -> None:
    past, update = torch.zeros(2, 3, 8, 4, requires_grad=True), torch.ones(2, 3, 2, 4, requires_grad=True)
    OPS.tensor_scatter(past, update, torch.tensor([0, 6])).sum().backward()
    assert past.grad is not None and past.grad.sum(dim=(1, 3)).tolist() == [
        [0] * 2 + [12] * 6,
        [12] * 6 + [0] * 2,
    ]
    assert update.grad is not None and update.grad.eq(1).all()


def test_indices_that_change_before_the_backward_pass_do_not_matter() -> None:
    past, update = torch.zeros(2, 3, 8, 4), torch.ones(2, 3, 2, 4, requires_grad=True)
    starts = torch.tensor([0, 6])
    total = (OPS.tensor_scatter(past, update, starts) * torch.arange(8.0)[:, None]).sum()
    starts.sub_(1)
    (gradient,) = torch.autograd.grad(total, update)
    assert gradient[:, 0, :, 0].tolist() == [[0, 1], [6, 7]]


def test_a_leaf_that_requires_a_gradient_is_not_written() -> None:
    leaf = torch.zeros(1, 1, 4, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        OPS.tensor_scatter_(leaf, torch.ones(1, 1, 1, 2))
    assert not leaf.any()
    with torch.no_grad():
        OPS.tensor_scatter_(leaf, torch.ones(1, 1, 1, 2))
    assert leaf.sum() == 2


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────


def past_and_update(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 3, 8, 4, **options), torch.ones(2, 3, 2, 4, **options)


@pytest.mark.parametrize("op", [OPS.tensor_scatter, OPS.tensor_scatter_], ids=["functional", "in-place"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda past, update: (past, update[:1]), kvscatter.ShapeError),
        (lambda past, update: (past, update[0]), kvscatter.ShapeError),
        (lambda past, update: (past[:, :, :1], update), kvscatter.ShapeError),
        (lambda past, update: (past, update.double()), kvscatter.ElementTypeError),
        (lambda past, update: (past, update, None, 0), kvscatter.OptionError),
        (lambda past, update: (past, update, None, 4), kvscatter.OptionError),
        (lambda past, update: (past, update, None, -2, "ring"), kvscatter.OptionError),
        (lambda past, update: (past, update, past[:, 0, 0, 0]), kvscatter.ElementTypeError),
        (lambda past, update: (past, update, past[:1, 0, 0, 0].long()), kvscatter.PositionError),
        (lambda past, update: (past, update, None, -2, "linear", past.long()), kvscatter.Error),
    ],
)
def test_the_fake_kernel_refuses_what_the_real_one_does(
    op: Any, change: Callable[..., tuple[Any, ...]], error: type[kvscatter.Error]
) -> None:
    with pytest.raises(error) as real:
        op(*change(*past_and_update()))
    refused(real.value.kind, real.value.argument, op, *change(*past_and_update(device="meta")), of=error)


@pytest.mark.parametrize("function", [kvscatter.torch.tensor_scatter, kvscatter.torch.tensor_scatter_])
@pytest.mark.parametrize("more", [{}, {"out_of_range": "skip"}], ids=["error", "skip"])
@pytest.mark.parametrize("elsewhere", ["cache", "update", "write_indices", "lengths"])
def test_tensors_with_and_without_memory_are_refused(
    function: Any, more: dict[str, str], elsewhere: str
) -> None:
    cache, update = past_and_update()
    tensors = {"cache": cache, "update": update, "write_indices": torch.tensor([1, 2])}
    tensors["lengths"] = torch.tensor([2, 1])
    tensors[elsewhere] = tensors[elsewhere].to("meta")
    argument = "update" if elsewhere == "cache" else elsewhere
    error = refused(
        "device",
        argument,
        function,
        *list(tensors.values())[:3],
        lengths=tensors["lengths"],
        **more,
        of=kvscatter.DeviceError,
    )
    got, other = ("cpu", "meta") if elsewhere == "cache" else ("meta", "cpu")
    assert str(error).startswith(f"{argument} is on {got}, but the cache is on {other}: ")
    assert error.device == got and not cache.any()


def test_sparse_tensors() -> None:
    past, update = past_and_update()
    for arguments in [(past.to_sparse(), update), (past, update.to_sparse())]:
        with pytest.raises(kvscatter.ArrayError, match="only strided tensors"):
            OPS.tensor_scatter(*arguments)
        with pytest.raises(kvscatter.ArrayError, match="only strided tensors"):
            OPS.tensor_scatter_(*arguments)


def test_views_that_hold_other_values_than_their_memory() -> None:
    past, update = past_and_update(dtype=torch.complex64)
    update = update * 1j
    want = OPS.tensor_scatter(past, update.conj().resolve_conj())
    assert torch.equal(OPS.tensor_scatter(past, update.conj()), want)
    with pytest.raises(kvscatter.ArrayError, match="conjugated or negated"):
        OPS.tensor_scatter_(past.conj(), update)
    with pytest.raises(kvscatter.ArrayError, match="conjugated or negated"):
        OPS.tensor_scatter_(past.conj().imag, update.imag)
    assert not past.any()
    OPS.tensor_scatter_(past, update.conj())
    assert torch.equal(past, want)


def test_memory_that_two_arguments_share() -> None:
    cache, update = past_and_update()
    with pytest.raises(kvscatter.ArrayError, match="shares memory"):
        OPS.tensor_scatter_(cache, cache[:, :, :2])
    broadcast = torch.randn(2, 1, 8, 4).expand(2, 3, 8, 4)
    with pytest.raises(kvscatter.ArrayError, match="share memory"):
        OPS.tensor_scatter_(broadcast, update)
    assert torch.equal(OPS.tensor_scatter(broadcast, update), OPS.tensor_scatter(broadcast.clone(), update))


# ── samples that do not fit, tracers, and inference mode ────────────────────────────────────────────────────────


def skipping(cache: torch.Tensor, update: torch.Tensor, *lists: Any, **more: Any) -> tuple[torch.Tensor, int]:
    """Returns what NumPy's function does with `out_of_range="skip"`."""
    present = cache.detach().clone()
    lengths = lists[1] if len(lists) > 1 else None
    skipped = kvscatter.tensor_scatter_(
        present, update.detach(), lists[0], lengths=lengths, out_of_range="skip", **more
    )
    return present, skipped


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_samples_that_do_not_fit_are_skipped(mode: Any, dtype: torch.dtype, has_lengths: bool) -> None:
    torch.compiler.reset()
    limits = torch.iinfo(dtype)
    starts = torch.tensor([limits.min, -1, 0, 5, 6, 7, 8, limits.max], dtype=dtype)
    lists = [starts, torch.tensor([3, 3, 0, 3, 3, 1, 0, 2], dtype=dtype)][: 1 + has_lengths]
    cache, update = torch.randn(8, 2, 8, 4), torch.randn(8, 2, 3, 4)
    want, count = skipping(cache, update, *lists, mode=mode)
    options = {"mode": mode, "lengths": lists[1] if has_lengths else None, "out_of_range": "skip"}
    for call in (
        kvscatter.torch.tensor_scatter,
        torch.compile(kvscatter.torch.tensor_scatter, backend="eager", fullgraph=True),
    ):
        present, skipped = call(cache, update, starts, **options)
        assert same(present, want) and int(skipped) == count == (0 if mode == "circular" else count)
    written = cache.clone()
    assert int(kvscatter.torch.tensor_scatter_(written, update, starts, **options)) == count
    assert same(written, want) and (count > 2) == (mode == "linear")


def test_narrow_indices_and_many_rows() -> None:
    cache, update = torch.zeros(2, 300, 1), torch.ones(2, 200, 1)
    starts = torch.tensor([0, 101], dtype=torch.int8)
    skipped = kvscatter.torch.tensor_scatter_(cache, update, starts, out_of_range="skip")
    assert int(skipped) == 1 and cache.sum(dim=(1, 2)).tolist() == [200, 0]


def test_skipped_samples_keep_their_gradient() -> None:
    cache = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    update = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)

    def write(cache: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return kvscatter.torch.tensor_scatter(cache, update, [0, 3, 2], out_of_range="skip")[0]

    assert torch.autograd.gradcheck(write, (cache, update), check_forward_ad=True)
    write(cache, update).sum().backward()
    assert update.grad is not None and update.grad.sum(dim=(1, 2)).tolist() == [4, 0, 4]


def test_items_of_vmap_skip_their_own_samples() -> None:
    cache, update = torch.randn(3, 2, 4, 2), torch.randn(3, 2, 2, 2)
    starts = torch.tensor([[0, 2], [3, 2], [3, -1]])
    present, skipped = torch.vmap(lambda *it: kvscatter.torch.tensor_scatter(*it, out_of_range="skip"))(
        cache, update, starts
    )
    assert skipped.tolist() == [0, 1, 2]
    for item in range(3):
        assert same(present[item], skipping(cache[item], update[item], starts[item])[0])


def test_a_policy_that_does_not_exist_is_refused() -> None:
    cache, update = torch.zeros(1, 4, 2), torch.zeros(1, 1, 2)
    for call in (kvscatter.torch.tensor_scatter, kvscatter.torch.tensor_scatter_):
        with pytest.raises(kvscatter.OptionError, match="out_of_range"):
            call(cache, update, out_of_range="clamp")


def test_a_traced_graph_has_one_call() -> None:
    def step(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        kvscatter.torch.tensor_scatter_(cache, update, starts, mode="circular")
        return kvscatter.torch.tensor_scatter(cache, update, starts + 1)

    traced = torch.fx.symbolic_trace(step)
    calls = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert {kvscatter.torch.tensor_scatter, kvscatter.torch.tensor_scatter_} <= set(calls)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    arguments = torch.randn(2, 4, 3), torch.randn(2, 1, 3), torch.tensor([1, 2])
    others = tuple(it.clone() for it in arguments)
    assert same(traced(*arguments), step(*others)) and same(arguments[0], others[0])


def test_a_cache_of_inference_mode_is_written_only_there() -> None:
    with torch.inference_mode():
        cache, update = torch.zeros(1, 4, 2), torch.ones(1, 1, 2)
        kvscatter.torch.tensor_scatter_(cache, update, [1])
    assert cache.sum() == 2
    for call in (kvscatter.torch.tensor_scatter_, OPS.tensor_scatter_):
        refused("tensor", "cache", call, cache, update, None, of=kvscatter.ArrayError)
    assert cache.sum() == 2
    assert kvscatter.torch.tensor_scatter(cache, update).sum() == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_tensors_name_the_module_that_writes_them() -> None:
    past, update = past_and_update(device="cuda")
    for op in (OPS.tensor_scatter, OPS.tensor_scatter_):
        with pytest.raises(kvscatter.DeviceError, match="kvscatter.cuda"):
            op(past, update)
