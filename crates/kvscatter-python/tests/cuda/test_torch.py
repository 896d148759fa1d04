"""Tests PyTorch's tensors, streams and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from simulated import values

import kvscatter
from kvscatter import cuda
from support import refused

SAMPLES, SLOTS = 3, 8


def tensors(torch: Any) -> tuple[Any, Any, Any]:
    """Returns a cache of zeros, an update of ones, and positions."""
    half = {"dtype": torch.float16, "device": "cuda"}
    cache, update = torch.zeros(SAMPLES, 2, SLOTS, 8, **half), torch.ones(SAMPLES, 2, 1, 8, **half)
    return cache, update, torch.zeros(SAMPLES, dtype=torch.int64, device="cuda")


def written(tensor: Any) -> list[list[int]]:
    """Returns the slots of each sample that contain ones, and checks that all others contain zeros."""
    cache = values(tensor)
    assert np.isin(cache, (0, 1)).all() and (cache == cache[:, :1, :, :1]).all()
    return [np.flatnonzero(sample).tolist() for sample in cache[:, 0, :, 0]]


def test_the_current_stream_is_that_of_each_launch(torch: Any) -> None:
    cache, update, positions = tensors(torch)
    write = cuda.prepare([(cache, update)], positions)
    assert write.width == 16
    torch.cuda.synchronize()
    for slot in range(3):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            positions.add_(1)
            write.launch()
        stream.synchronize()
        assert written(cache) == [[*range(1, slot + 2)]] * SAMPLES
    write.status.check()


def test_a_graph_that_goes_too_far_says_so(torch: Any) -> None:
    cache, update, positions = tensors(torch)
    write = cuda.prepare([(cache, update)], positions)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write.launch()
        positions.add_(3)
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    assert written(cache) == [[0, 3, 6]] * SAMPLES
    assert write.status.read() == (SAMPLES, 0, 9)
    positions.add_(-3)
    torch.cuda.synchronize()
    error = refused("start_out_of_range", "write_indices", write.status.check, of=kvscatter.PositionError)
    assert (error.index, error.value, error.capacity) == (0, 9, SLOTS)
    write.status.clear()
    positions.add_(-8)
    write.launch()
    torch.cuda.synchronize()
    write.status.check()
    assert written(cache) == [[0, 1, 3, 6]] * SAMPLES


def test_a_present_is_a_tensor_of_its_own(torch: Any) -> None:
    cache, update, positions = tensors(torch)
    present, _, _ = tensors(torch)
    positions.add_(5)
    write = cuda.prepare_present([(cache, update, present)], positions)
    write.launch()
    torch.cuda.synchronize()
    write.status.check()
    assert (written(present), written(cache)) == ([[5]] * SAMPLES, [[]] * SAMPLES)
