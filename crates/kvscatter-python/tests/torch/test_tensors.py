"""Tests PyTorch's tensors as arrays: every dtype that both have, views in place, and properties besides
memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.overrides import TorchFunctionMode

import kvscatter
import kvscatter.torch
from support import first_calls, refused

DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]  # fmt: skip


def raw(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).flatten().tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_moves_by_width(dtype: torch.dtype) -> None:
    width = 1 if dtype == torch.float4_e2m1fn_x2 else dtype.itemsize
    ones = 1 if dtype == torch.bool else 37
    cache = torch.zeros(2, 3, 4, 5 * width, dtype=torch.uint8).view(dtype)
    update = torch.full((2, 3, 1, 5 * width), ones, dtype=torch.uint8).view(dtype)
    expected = torch.zeros(2, 3, 4, 5 * width, dtype=torch.uint8)
    expected[0, :, 3], expected[1, :, 1] = ones, ones
    write = kvscatter.prepare(cache, update)
    for call in (kvscatter.tensor_scatter_, write):
        cache.view(torch.uint8).zero_()
        assert call(cache, update, torch.tensor([3, 1])) == 0
        assert raw(cache) == raw(expected)
    cache.view(torch.uint8).zero_()
    present = kvscatter.tensor_scatter(cache, update, torch.tensor([3, 1], dtype=torch.int32))
    assert (present.dtype, present.shape) == (cache.dtype, cache.shape)
    assert raw(present) == raw(expected)
    assert not any(raw(cache))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float4_e2m1fn_x2])
def test_shapes_take_a_dtype_of_pytorch(dtype: torch.dtype) -> None:
    cache, update = torch.zeros(2, 4, 2, dtype=dtype), torch.ones(2, 1, 2).to(dtype)
    write = kvscatter.prepare(cache.shape, update.shape, dtype=dtype)
    assert repr(write) == repr(kvscatter.prepare(cache, update))
    assert write(cache, update, [1, 2]) == 0 and raw(cache[0, 1]) == raw(update[0, 0])
    assert kvscatter.plan((2, 4, 2), (2, 1, 2), dtype=dtype).elements == 4


def test_dtypes_that_no_array_has_are_refused() -> None:
    for dtype in (torch.float4_e2m1fn_x2, torch.qint8):
        call = partial(kvscatter.prepare, (2, 4, 2), (2, 1, 2), dtype=dtype)
        assert f"dtype = {dtype}: " in str(refused("element_type", "dtype", call))


def test_tensors_that_stand_for_others_have_no_memory() -> None:
    cache, update, starts = torch.zeros(2, 4, 2), torch.ones(2, 1, 2), torch.tensor([1, 2])
    write = kvscatter.prepare(cache, update)
    with FakeTensorMode():
        fakes: list[Any] = [torch.zeros(2, 4, 2), torch.ones(2, 1, 2), torch.tensor([1, 2])]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    parts: list[Any] = [distribute_tensor(tensor, mesh, [Replicate()]) for tensor in (cache, update, starts)]
    torch.distributed.destroy_process_group()
    for name, others in (("FakeTensor", fakes), ("DTensor", parts)):
        for place, argument in enumerate(("cache", "update", "write_indices")):
            given: list[Any] = [cache, update, starts]
            given[place] = others[place]
            for call in (kvscatter.tensor_scatter_, write):
                error = refused("no_memory", argument, call, *given, of=kvscatter.ArrayError)
                assert f".{name}, which has no memory" in str(error) and "torch.ops.kvscatter" in str(error)
    assert not cache.any()


def test_a_tensor_whose_storage_is_empty() -> None:
    cache, update = torch.zeros(1, 4, 2), torch.ones(1, 1, 2)
    cache.untyped_storage().resize_(0)
    for call in (kvscatter.tensor_scatter_, kvscatter.torch.tensor_scatter_):
        error = refused("no_memory", "cache", call, cache, update, [1], of=kvscatter.ArrayError)
        assert "its storage has 0 bytes" in str(error)


class Interrupts(TorchFunctionMode):
    """Frees a tensor's memory in the ``moment``-th call that reaches Python."""

    def __init__(self, tensor: torch.Tensor, moment: int) -> None:
        super().__init__()
        self.tensor, self.moment = tensor, moment

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.moment -= 1
        if self.moment == 0:
            self.tensor.set_(torch.empty(0))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [4, 1 << 14])
def test_memory_that_goes_while_another_argument_is_read(rows: int) -> None:
    kinds = set()
    for moment in range(1, 12):
        cache, update = torch.zeros(2, 1, rows, 8), torch.ones(2, 1, rows // 4, 8)
        write = kvscatter.prepare(cache, update)
        for call in (kvscatter.tensor_scatter_, kvscatter.tensor_scatter, write):
            cache = torch.zeros(2, 1, rows, 8)
            with Interrupts(cache, moment) as mode:
                try:
                    call(cache, update, [0, 1])
                except kvscatter.Error as error:
                    kinds.add(error.kind)
                    assert mode.moment <= 0
    assert kinds == {"rank_too_low", "prepared", "moved"}


def test_other_objects_of_torch_are_refused() -> None:
    cache = torch.zeros(2, 4, 2)
    for other in (cache.shape, cache.dtype, torch.nn.Linear(1, 1)):
        refused("not_an_array", "update", kvscatter.tensor_scatter_, cache, other, [0, 0])


def test_views_are_written_in_place() -> None:
    memory = torch.zeros(3, 5, 2, 8)
    cache = memory.permute(0, 2, 1, 3)[1:, :, 1:, ::2]
    update = torch.ones(2, 1, 2, 4).permute(0, 2, 1, 3)
    write = kvscatter.prepare(cache, update)
    for call in (kvscatter.tensor_scatter_, write):
        memory.zero_()
        call(cache, update, [0, 3])
        expected = torch.zeros(3, 5, 2, 8)
        expected[1, 1, :, ::2], expected[2, 4, :, ::2] = 1, 1
        assert torch.equal(memory, expected)


def test_a_large_write_holds_its_tensors() -> None:
    cache, update = torch.zeros(1, 64, 1 << 15), torch.ones(1, 32, 1 << 15)
    kvscatter.prepare(cache, update)(cache, update, [16])
    assert cache.sum() == update.numel()
    assert cache[0, 16:48].all()


@pytest.mark.parametrize(
    "indices", [torch.tensor([3, 1]), torch.tensor([3, 9, 1])[::2], torch.tensor([3, 1], dtype=torch.uint8)]
)
def test_indices(indices: torch.Tensor) -> None:
    cache, update = torch.zeros(2, 4, 1), torch.ones(2, 1, 1)
    kvscatter.tensor_scatter_(cache, update, indices)
    assert cache[..., 0].tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]


def test_tensors_with_gradients_or_conjugated_views_are_refused() -> None:
    cache, update = torch.zeros(1, 4, 2), torch.ones(1, 1, 2)
    write = kvscatter.prepare(cache, update)
    negated = torch.ones(1, 1, 2, dtype=torch.complex64).conj().imag
    for call in (kvscatter.tensor_scatter_, write):
        refused("tensor", "cache", call, cache.clone().requires_grad_(), update, [0])
        refused("tensor", "update", call, cache, update.clone().requires_grad_(), [0])
        refused("tensor", "update", call, cache, negated, [0])
    refused("tensor", "update", kvscatter.tensor_scatter_, cache, torch._neg_view(update), [0])
    single, one = torch.zeros(1, 4, 1), torch.ones(1, 1, 1, dtype=torch.complex64).conj().imag
    refused("tensor", "update", kvscatter.prepare(single, single[:, :1].clone()), single, one, [0])
    conjugated = torch.ones(1, 1, 2, dtype=torch.complex64).conj()
    complex_cache = torch.zeros(1, 4, 2, dtype=torch.complex64)
    refused("tensor", "update", kvscatter.tensor_scatter_, complex_cache, conjugated, [0])
    refused(
        "tensor",
        "update",
        kvscatter.prepare(complex_cache, conjugated.clone()),
        complex_cache,
        conjugated,
        [0],
    )
    assert not cache.any()
    assert not complex_cache.any()


def test_tensors_without_memory_here() -> None:
    update = torch.ones(1, 1, 2)
    for cache in (torch.zeros(1, 4, 2, device="meta"), torch.zeros(1, 4, 2).to_sparse()):
        refused("export", "cache", kvscatter.tensor_scatter_, cache, update, [0])
    shared = torch.zeros(1, 1, 2).expand(1, 4, 2)
    refused("cache_overlaps_itself", "cache", kvscatter.tensor_scatter_, shared, update, [0])
    with pytest.warns(UserWarning, match="ComplexHalf"):
        half = torch.zeros(1, 4, 2, dtype=torch.complex32)
    refused("element_type", "cache", kvscatter.tensor_scatter_, half, update, [0])


def test_parameters_without_a_gradient_and_inference_tensors_are_tensors() -> None:
    update = torch.ones(1, 1, 2)
    cache = torch.nn.Parameter(torch.zeros(1, 4, 2), requires_grad=False)
    write = kvscatter.prepare(cache, update)
    assert write(cache, update, [2]) == 0
    with torch.inference_mode():
        assert write(torch.zeros(1, 4, 2), update * 1, [2]) == 0
    assert cache.flatten().tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_numpy_and_torch_mix() -> None:
    cache = torch.zeros(1, 4, 2)
    kvscatter.tensor_scatter_(cache, torch.ones(1, 1, 2).numpy(), [1])
    write = kvscatter.prepare((1, 4, 2), (1, 1, 2), dtype="float32")
    write(cache, torch.ones(1, 1, 2), [3])
    assert cache[0, :, 0].tolist() == [0, 1, 0, 1]
    refused("overlap", "cache", kvscatter.tensor_scatter_, cache, cache[:, :1].numpy(), [1])


def test_autograd_notices_a_write() -> None:
    def of_loss(write: Any) -> None:
        cache, query = torch.zeros(1, 1, 4, 2), torch.ones(1, 1, 4, 2, requires_grad=True)
        loss = (query * cache).sum()
        with torch.no_grad():
            write(cache, torch.ones(1, 1, 1, 2))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    prepared = kvscatter.prepare((1, 1, 4, 2), (1, 1, 1, 2), dtype="float32")
    of_loss(lambda cache, update: kvscatter.tensor_scatter_(cache, update, [0]))
    of_loss(lambda cache, update: prepared(cache, update, [0]))
    of_loss(lambda cache, update: prepared.many([(cache, update)], [0]))
    of_loss(lambda cache, update: prepared.plan([0]).write(cache, update))
    of_loss(lambda cache, update: prepared.into(torch.zeros(1, 1, 4, 2), update, cache, [0]))
    of_loss(lambda cache, update: kvscatter.kv_cache_update_(cache, update, [0]))


def test_a_refused_write_is_not_counted() -> None:
    cache, update = torch.zeros(1, 4, 2), torch.ones(1, 1, 2)
    version = cache._version
    for call in (kvscatter.tensor_scatter_, kvscatter.prepare(cache, update)):
        refused("start_out_of_range", "write_indices", call, cache, update, [4])
    assert cache._version == version


def test_a_pair_that_differs_from_the_first_is_named() -> None:
    pairs = [(torch.zeros(1, 4, 2), torch.ones(1, 1, 2)), (torch.zeros(1, 4, 3), torch.ones(1, 1, 3))]
    error = refused("prepared", "cache", kvscatter.write_many, pairs, [0])
    assert "cache (pair 1) has shape (1, 4, 3), must have (1, 4, 2)" in str(error)


@pytest.mark.parametrize("by", ["signal", "finalizer"])
def test_the_first_write_may_be_repeated_while_it_runs(by: str) -> None:
    first_calls(by, "tensor")
