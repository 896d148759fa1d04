"""Measures what a sharded write costs a process, and predicts it for more devices.

    cargo xtask scale [--quick] [--write-docs]

Processes on this machine communicate with gloo. The cost model is fitted to one process and to messages between
two. Its predictions are compared with decode steps of 1 and 2 processes, and of 4 if there are as many cores, and
extended to 1,024 devices.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import kvscatter.torch
import pages
from cost_model import (
    Decoder,
    Device,
    Link,
    Mesh,
    all_reduce_seconds,
    all_reduces_seconds,
    cache_bytes,
    read_seconds,
    write_seconds,
)

PAGE = pages.ROOT / "docs" / "scale.md"

PROCESSES = (1, 2, 4) if (os.cpu_count() or 1) >= 4 else (1, 2)  # messages need two
# The decoder whose steps are measured.
SMALL = Decoder(layers=4, hidden_size=1024, heads=8, head_size=128, element_bytes=2, samples=512, tokens=64)
PREPARED, OPERATOR, DTENSORS = "prepared", "operator", "DTensors"  # ways to write
SAMPLES = (1, 16, 128, 1024)  # of the steps to which the model is fitted
MIB = 1 << 20
MESSAGES = (MIB >> 8, MIB >> 4, MIB << 2, MIB << 6)  # bytes of the all-reduces to which the model is fitted
COPY = MIB << 8
# Llama 3.1 70B in bfloat16.
LARGE = Decoder(
    layers=80, hidden_size=8192, heads=8, head_size=128, element_bytes=2, samples=1024, tokens=8192
)
MESHES = [Mesh(1, 1), Mesh(1, 8), Mesh(8, 8), Mesh(128, 8)]
# Replayed decode steps of docs/cuda.md: rows of keys and values, and seconds. Only one GPU was measured, so there
# are no times of messages.
H100_WRITES = {16: 2.44e-6, 1024: 2.85e-6, 4096: 3.33e-6}
H100_COPY = 2.99e12  # bytes per second, read and written


class Process:
    """One of several processes. All make the same calls in the same order, or those that communicate would wait
    forever."""

    def __init__(self, processes: int, seconds: float) -> None:
        self.processes, self.seconds = processes, seconds
        self.mesh = init_device_mesh("cpu", (processes,))

    def time(self, call: Callable[[], Any]) -> float:
        """Returns the median seconds of a call, in the slowest process."""
        for _ in range(3):
            call()
        begin = time.perf_counter()
        call()
        slowest = self.largest(time.perf_counter() - begin)
        times = []
        for _ in range(max(5, min(2000, round(self.seconds / slowest)))):
            torch.distributed.barrier()
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return self.largest(statistics.median(times))

    def largest(self, value: float) -> float:
        """Returns the largest value of all processes."""
        tensor = torch.tensor(value, dtype=torch.float64)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
        return tensor.item()

    def step(self, samples: int, way: str = PREPARED) -> Callable[[], Any]:
        """Returns the writes of a decode step into this process's heads of all caches, each time into other slots."""
        shape = (samples, SMALL.heads // self.processes, SMALL.tokens, SMALL.head_size)
        caches: list[torch.Tensor] = [
            torch.zeros(shape, dtype=torch.float16) for _ in range(2 * SMALL.layers)
        ]
        update = torch.ones(*shape[:2], 1, shape[3], dtype=torch.float16)
        write: Callable[..., Any] = kvscatter.torch.tensor_scatter_
        if way == PREPARED:
            write = kvscatter.prepare(caches[0], update)
        if way == DTENSORS:
            shards = [Shard(1)]
            caches = [DTensor.from_local(each, self.mesh, shards, run_check=False) for each in caches]
            update = DTensor.from_local(update, self.mesh, shards, run_check=False)
        starts = torch.arange(samples) * 7 % SMALL.tokens

        def call() -> None:
            starts.add_(1).remainder_(SMALL.tokens)
            for cache in caches:
                write(cache, update, starts)

        return call

    def all_reduce(self, size: int) -> Callable[[], Any]:
        """Returns an all-reduce of `size` bytes of each process."""
        return partial(torch.distributed.all_reduce, torch.ones(size // 4))

    def measure(self) -> dict[str, Any]:
        """Returns the seconds of a step and of all-reduces and, for one process, of what the model is fitted to."""
        result: dict[str, Any] = {
            "step": self.time(self.step(SMALL.samples)),
            "messages": {size: self.time(self.all_reduce(size)) for size in (*MESSAGES, MIB)},
        }
        if self.processes == 1:
            calls = 2 * SMALL.layers
            result["writes"] = {
                samples * SMALL.heads: self.time(self.step(samples)) / calls for samples in SAMPLES
            }
            result["ways"] = {way: self.time(self.step(1, way)) / calls for way in (OPERATOR, DTENSORS)}
            source = torch.ones(COPY, dtype=torch.uint8)
            target = torch.empty_like(source)
            result["copy"] = self.time(lambda: target.copy_(source))
        return result


def run(rank: int, processes: int, folder: str, seconds: float) -> None:
    """Measures in one of the processes. The first one saves the result."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store-{processes}", processes)  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    result = Process(processes, seconds).measure()
    if rank == 0:
        torch.save(result, f"{folder}/{processes}")
    torch.distributed.barrier()
    # If Python ended while gloo's threads run, the process could abort (pytorch/pytorch#179291).
    os._exit(0)


def fitted(columns: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> list[float]:
    """Returns the constants with the least relative errors."""
    found: list[float] = np.linalg.lstsq(columns / times[:, None], np.ones_like(times))[0].tolist()
    return found


def writer(writes: Mapping[int, float], read: float, calls_per_layer: int) -> Device:
    """Fits a device to the seconds of writes of some numbers of rows."""
    rows, times = np.array(list(writes), float), np.array(list(writes.values()))
    call, row = fitted(np.stack([np.ones_like(rows), rows], 1), times)
    return Device(call, row, read, calls_per_layer)


def link(messages: Mapping[int, float]) -> Link:
    """Fits a link to all-reduces of two processes. Their ring has two steps, each with half of the bytes."""
    sizes, times = np.array(list(messages), float), np.array(list(messages.values()))
    message, byte = fitted(np.stack([np.full_like(sizes, 2), sizes], 1), times)
    return Link(message, byte)


def shown(seconds: float) -> str:
    """Returns three digits with a suitable unit."""
    return pages.shown(seconds * 1e9)


def text(measured: Mapping[int, dict[str, Any]]) -> str:
    """Returns the constants, the comparison and the prediction as Markdown."""
    alone = measured[1]
    host = writer(alone["writes"], alone["copy"] / (2 * COPY), 2)
    between = link({size: measured[2]["messages"][size] for size in MESSAGES})
    h100 = writer(H100_WRITES, 1 / H100_COPY, 1)
    return "\n\n".join(
        [
            f"{pages.machine('numpy', 'torch')}; one thread for each process.",
            constants(host, between, h100, alone["ways"]),
            "**Predicted and measured**: the prepared writes of a decode step of a decoder with "
            f"{SMALL.layers} layers, {SMALL.heads} heads and {SMALL.samples} samples, and an all-reduce of 1 MiB. "
            "Neither is part of the fit.",
            comparison(host, between, measured),
            "**Predicted**: what the caches and the all-reduces of a decode step of Llama 3.1 70B in bfloat16 cost "
            f"each device, with {LARGE.samples:,} samples of {LARGE.tokens:,} tokens.",
            prediction(host, between, h100),
        ]
    )


def constants(host: Device, between: Link, h100: Device, ways: Mapping[str, float]) -> str:
    """Returns the table of the constants."""
    copies = [f"{1e-9 / device.read:.4g} GB/s" for device in (host, h100)]
    return "\n".join(
        [
            "| constant | the CPU | an H100 |",
            "|---|--:|--:|",
            f"| fixed time of a prepared write, of keys or values | {shown(host.call)} | |",
            f"| the same with `kvscatter.torch.tensor_scatter_` | {shown(ways[OPERATOR])} | |",
            f"| the same with DTensors | {shown(ways[DTENSORS])} | |",
            f"| fixed time of a launch for both, in a CUDA graph | | {shown(h100.call)} |",
            f"| one more row of a head, {SMALL.row_bytes} bytes | {shown(host.row)} | {shown(h100.row)} |",
            f"| bandwidth of a copy, bytes read plus written | {' | '.join(copies)} |",
            f"| fixed time of a message between two processes | {shown(between.message)} | not measured |",
            f"| bandwidth of messages | {1e-9 / between.byte:.3g} GB/s | not measured |",
        ]
    )


def comparison(host: Device, between: Link, measured: Mapping[int, dict[str, Any]]) -> str:
    """Returns the table of predicted and measured times."""
    lines = [
        "| processes | writes: predicted | measured | ratio | all-reduce: predicted | measured | ratio |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for processes, result in measured.items():
        pairs = [(write_seconds(host, SMALL, Mesh(1, processes)), result["step"])]
        if processes > 1:
            pairs.append((all_reduce_seconds(between, MIB, processes), result["messages"][MIB]))
        cells = [
            cell
            for predicted, seen in pairs
            for cell in (shown(predicted), shown(seen), f"{seen / predicted:.2f}")
        ]
        lines.append(f"| {' | '.join([str(processes), *cells, *['–'] * (6 - len(cells))])} |")
    return "\n".join(lines)


def prediction(host: Device, between: Link, h100: Device) -> str:
    """Returns the table of the large decoder."""
    lines = [
        "| devices | batch × heads | caches | CPU: writes | CPU: reads | CPU: all-reduces "
        "| H100: writes | H100: reads |",
        f"|{'--:|' * 8}",
    ]
    for mesh in MESHES:
        cells = [
            f"{mesh.devices:,}",
            f"{mesh.batch} × {mesh.heads}",
            f"{cache_bytes(LARGE, mesh) / 1e9:,.4g} GB",
            shown(write_seconds(host, LARGE, mesh)),
            shown(read_seconds(host, LARGE, mesh)),
            shown(all_reduces_seconds(between, LARGE, mesh)) if mesh.heads > 1 else "–",
            shown(write_seconds(h100, LARGE, mesh)),
            shown(read_seconds(h100, LARGE, mesh)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the tables and, with `--write-docs`, updates the page."""
    options = argparse.ArgumentParser(prog="cargo xtask scale")
    options.add_argument("--quick", action="store_true", help="a short run, to see that things work")
    options.add_argument("--write-docs", action="store_true", help="rewrite the tables of docs/scale.md")
    given = options.parse_args()
    spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in PROCESSES:
            print(f"measuring with {processes} processes", flush=True)
            seconds = 0.1 if given.quick else 5
            spawn(run, (processes, folder, seconds), nprocs=processes)
            measured[processes] = torch.load(f"{folder}/{processes}")
    tables = text(measured)
    print(f"\n{tables}")
    if given.write_docs:
        pages.write(PAGE, "cargo xtask scale", tables)


if __name__ == "__main__":
    main()
