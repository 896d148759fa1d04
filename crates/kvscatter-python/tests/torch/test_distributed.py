"""Tests the sharding rules in processes that communicate over the loopback interface, against one process
with whole tensors.

Each test starts its ranks, runs every check in them and ends them. A rank that fails makes the test fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from transformers import LlamaConfig, LlamaForCausalLM

import kvscatter
import kvscatter.torch
from support import check_sharded_example

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="there is no gloo",
)
OPS = torch.ops.kvscatter
SEQUENCE = 2


def _rank(rank: int, world: int, folder: str, checks: list[Callable[[int], None]]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for check in checks:
        torch.manual_seed(3)  # the same seed on every rank
        check(world)
    torch.distributed.barrier()
    # Gloo's threads can still refer to Python objects here. If the interpreter ended before they release
    # these, the process would abort ("terminate called without an active exception"), so the rank ends
    # without finalizing.
    os._exit(0)


def run(world: int, folder: Path, checks: list[Callable[[int], None]]) -> None:
    context = torch.multiprocessing.spawn(_rank, (world, str(folder), checks), nprocs=world, join=False)
    try:
        while not context.join(timeout=120):
            pass
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()


@pytest.mark.parametrize("world", [2, 4])
def test_in_processes(world: int, tmp_path: Path) -> None:
    run(
        world,
        tmp_path,
        [
            check_one_axis,
            check_two_axes,
            check_replicated_is_cut,
            check_plain_positions,
            check_refusals,
            check_strided,
        ],
    )


def test_the_example_decodes_the_same_tokens() -> None:
    check_sharded_example("torch_heads.py")


GENERATE = {
    "input_ids": torch.tensor([[3, 5, 8], [3, 1, 4]]),
    "attention_mask": torch.ones(2, 3, dtype=torch.int64),
    "max_new_tokens": 12,
    "do_sample": False,
}


def test_tensor_parallel_models_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    config = LlamaConfig(**sizes, **ends, num_attention_heads=8, num_key_value_heads=4)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    want = model.generate(**GENERATE)
    run(2, tmp_path, [partial(check_model, path=tmp_path / "model", want=want)])


# ── checks that every rank runs ─────────────────────────────────────────────────────────────────────────────────


def check_model(world: int, *, path: Path, want: torch.Tensor) -> None:
    """Each process has some of the heads, and generates the tokens of one process."""
    rank = str(torch.distributed.get_rank())
    os.environ.update({"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(world)})  # as torchrun does
    model = LlamaForCausalLM.from_pretrained(path, tp_plan="auto").eval()
    cache = kvscatter.torch.KvCache(model.config, max_cache_len=16)
    assert torch.equal(model.generate(**GENERATE, past_key_values=cache), want)
    assert {layer.keys.shape for layer in cache.layers} == {(2, 4 // world, 16, 8)}


def tensors(batch: int, heads: int, size: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Returns a cache, an update and the other arguments as whole tensors, the same on every rank."""
    cache, update = torch.randn(batch, heads, 8, size), torch.randn(batch, heads, 3, size)
    return (
        cache,
        update,
        {"write_indices": torch.randint(0, 8, (batch,)), "lengths": torch.randint(0, 4, (batch,))},
    )


def following(placements: tuple[Placement, ...]) -> list[Placement]:
    """Returns the placements of positions for a cache with these placements."""
    return [placement if placement == Shard(0) else Replicate() for placement in placements]


def check_write(mesh: DeviceMesh, placements: tuple[Placement, ...], sizes: tuple[int, int, int]) -> None:
    """Checks both operators, with and without lengths, on one mesh. They must not communicate."""
    cache, update, options = tensors(*sizes)
    there = [distribute_tensor(whole, mesh, placements) for whole in (cache, update)]
    positions = {
        name: distribute_tensor(whole, mesh, following(placements)) for name, whole in options.items()
    }
    for given in (("write_indices", "lengths"), ("write_indices",), ()):
        mode = "circular" if given else "linear"
        arguments = {name: options[name] for name in given}
        want = kvscatter.torch.tensor_scatter(cache, update, mode=mode, **arguments)
        distributed = {name: positions[name] for name in given}
        written = there[0].clone()
        address = written.to_local().data_ptr()
        with CommDebugMode() as communication:
            present = kvscatter.torch.tensor_scatter(*there, mode=mode, **distributed)
            kvscatter.torch.tensor_scatter_(written, there[1], mode=mode, **distributed)
        assert communication.get_total_counts() == 0, communication.get_comm_counts()
        assert written.to_local().data_ptr() == address
        for got in (present, written):
            assert isinstance(got, DTensor) and got.placements == placements and got.shape == cache.shape
            assert torch.equal(got.full_tensor(), want), (placements, sizes, given)


def check_one_axis(world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    even, uneven, empty = (world, 2 * world, world), (world + 1, 2 * world + 1, world + 3), (1, 1, 1)
    for sizes in (even, uneven, empty):  # in the last, all ranks but one have empty shards
        for placement in (Replicate(), Shard(0), Shard(1), Shard(3)):
            check_write(mesh, (placement,), sizes)


def check_two_axes(world: int) -> None:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    choices = (Replicate(), Shard(0), Shard(1), Shard(3))
    for first in choices:
        for second in choices:
            check_write(mesh, (first, second), (5, 6, 7))


def check_replicated_is_cut(world: int) -> None:
    """An update and positions that are replicated are cut on each rank, without communication."""
    mesh = init_device_mesh("cpu", (world,))
    cache, update, options = tensors(world + 1, world, 4)
    want = kvscatter.torch.tensor_scatter(cache, update, mode="circular", **options)
    everywhere = [Replicate()]
    replicated = {name: distribute_tensor(whole, mesh, everywhere) for name, whole in options.items()}
    for placement in (Shard(0), Shard(1), Shard(3)):
        written = distribute_tensor(cache.clone(), mesh, [placement])
        given = distribute_tensor(update, mesh, everywhere)
        with CommDebugMode() as communication:
            kvscatter.torch.tensor_scatter_(written, given, mode="circular", **replicated)
        assert communication.get_total_counts() == 0
        assert torch.equal(written.full_tensor(), want)


def check_plain_positions(world: int) -> None:
    """Positions that are not distributed are those of every rank, without communication."""
    mesh = init_device_mesh("cpu", (world,))
    cache, update, options = tensors(world + 1, world, 4)
    lists = {name: values.tolist() for name, values in options.items()}
    for placement in (Replicate(), Shard(0), Shard(1), Shard(3)):
        there = [distribute_tensor(whole, mesh, [placement]) for whole in (cache, update)]
        for given in (options, lists, {**lists, "write_indices": options["write_indices"]}):
            want, count = kvscatter.torch.tensor_scatter(cache, update, out_of_range="skip", **options)
            with CommDebugMode() as communication:
                present, skipped = kvscatter.torch.tensor_scatter(*there, out_of_range="skip", **given)
                ring = there[0].clone()
                kvscatter.torch.tensor_scatter_(ring, there[1], mode="circular", **given)
            assert communication.get_total_counts() == 0
            assert torch.equal(present.full_tensor(), want) and int(skipped.full_tensor()) == int(count)
            want = kvscatter.torch.tensor_scatter(cache, update, mode="circular", **options)
            assert torch.equal(ring.full_tensor(), want)


def check_strided(world: int) -> None:
    """The cache is [batch, capacity, heads, size], and the write uses a view with the heads before the
    capacity."""
    mesh = init_device_mesh("cpu", (world,))
    cache, update, options = tensors(2, 2 * world, 4)
    want = kvscatter.torch.tensor_scatter(cache, update, mode="circular", **options)
    stored = distribute_tensor(cache.transpose(1, 2).contiguous(), mesh, [Shard(2)])
    new = distribute_tensor(update, mesh, [Shard(1)])
    positions = {name: distribute_tensor(whole, mesh, [Replicate()]) for name, whole in options.items()}
    with CommDebugMode() as communication:
        kvscatter.torch.tensor_scatter_(stored.transpose(1, 2), new, mode="circular", **positions)
    assert communication.get_total_counts() == 0
    assert torch.equal(stored.full_tensor().transpose(1, 2), want)


def check_refusals(world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    cache, update, options = tensors(world, world, world)
    starts = options["write_indices"]
    place = {name: [Replicate()] for name in ("cache", "update", "starts")}

    def refused(words: str, **changed: list[Placement]) -> None:
        placed = place | changed
        distributed = [
            # A partial tensor cannot be made from a whole tensor.
            DTensor.from_local(whole, mesh, placed[name], run_check=False)
            if isinstance(placed[name][0], Partial)
            else distribute_tensor(whole, mesh, placed[name])
            for name, whole in (("cache", cache), ("update", update), ("starts", starts))
        ]
        before = distributed[0].to_local().clone()
        for op in (OPS.tensor_scatter, OPS.tensor_scatter_):
            with CommDebugMode() as communication, pytest.raises(RuntimeError, match=words) as caught:
                op(*distributed, SEQUENCE, "circular")
            assert isinstance(caught.value.__cause__, kvscatter.OptionError)
            assert communication.get_total_counts() == 0
        assert torch.equal(distributed[0].to_local(), before)

    refused("sharded over the sequence", cache=[Shard(SEQUENCE)])
    refused("a sum that is not reduced yet", cache=[Partial()])
    refused("redistribute update", cache=[Shard(1)], update=[Shard(0)])
    refused("redistribute update", update=[Shard(1)])
    refused("redistribute update", cache=[Shard(1)], update=[Partial()])
    refused("redistribute write_indices", cache=[Shard(1)], starts=[Shard(0)])
    refused("redistribute write_indices", cache=[Shard(0)], starts=[Partial()])
    whole = distribute_tensor(cache, mesh, [Replicate()])
    with pytest.raises(RuntimeError, match="mixed torch.Tensor and DTensor"):
        OPS.tensor_scatter_(whole, update, starts)
    other = init_device_mesh("cpu", (1, world))
    elsewhere = distribute_tensor(update, other, [Replicate(), Replicate()])
    with pytest.raises(RuntimeError, match="both must be on one mesh"):
        OPS.tensor_scatter_(whole, elsewhere, distribute_tensor(starts, mesh, [Replicate()]))
    beyond = distribute_tensor(starts + 8, mesh, [Replicate()])
    with pytest.raises(kvscatter.PositionError, match="capacity of 8"):
        OPS.tensor_scatter_(whole, distribute_tensor(update, mesh, [Replicate()]), beyond)
