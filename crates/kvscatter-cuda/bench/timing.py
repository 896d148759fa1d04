"""Times many writes on the device, eager or replayed from a graph, and enqueuing them on the host."""

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from place import Gpu
from results import Samples
from way import Way

MICRO = 1e3
ROUNDS = 31
WARM_UP = 2
COPIED = 2 << 30
COPIES = 20


class Clocks:
    """The clocks of the current device."""

    def __init__(self) -> None:
        """Allocates the memory that evicts the device's last cache level."""
        self.place = Gpu()
        self.device = self.place.device
        self.properties = torch.cuda.get_device_properties(self.device)
        self.cache_level = int(self.properties.L2_cache_size)
        self._evicting = torch.empty(4 * self.cache_level, dtype=torch.uint8, device=self.device)

    def evict(self) -> None:
        """Fills the last cache level with other data."""
        self._evicting.random_()
        torch.cuda.synchronize()

    def copy_bandwidth(self) -> float:
        """Returns bytes per microsecond, read and written, for one large copy, as a median of several."""
        to, from_ = (torch.empty(COPIED, dtype=torch.uint8, device=self.device).random_() for _ in range(2))

        def copy() -> float:
            return between_events(lambda: to.copy_(from_))

        for _ in range(WARM_UP):
            copy()
        return 2 * COPIED / statistics.median(copy() for _ in range(COPIES))

    def captured(self, way: Way, writes: int) -> torch.cuda.CUDAGraph:
        """Captures all writes, one after the other."""
        for number in range(writes):
            way.write(number)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for number in range(writes):
                way.write(number)
        return graph

    def eager(self, way: Way, writes: int) -> tuple[float, float]:
        """Returns microseconds per write: the device's, and the host's for enqueuing it."""
        self.evict()
        if way.wait:
            begin = time.perf_counter_ns()
            host = enqueue(way, writes)
            way.wait()
            return (time.perf_counter_ns() - begin) / writes / MICRO, host
        host = 0.0

        def work() -> None:
            nonlocal host
            host = enqueue(way, writes)

        return between_events(work) / writes, host

    def replayed(self, graph: torch.cuda.CUDAGraph, writes: int) -> float:
        """Returns microseconds of the device per write."""
        self.evict()
        return between_events(graph.replay) / writes

    def measure(
        self, ways: list[Way], graphs: Mapping[str, torch.cuda.CUDAGraph], writes: int, seconds: float
    ) -> dict[str, Samples]:
        """Measures one sample of each way in every round, in an order that changes.

        There are fewer rounds if `seconds` are over.
        """
        found = {way.name: Samples() for way in ways}
        end = time.monotonic() + seconds
        order = list(ways)
        for turn in range(WARM_UP + ROUNDS):
            if turn > WARM_UP + 2 and time.monotonic() > end:
                break
            random.shuffle(order)
            for way in order:
                eager, host = self.eager(way, writes)
                replayed = self.replayed(graphs[way.name], writes) if way.name in graphs else None
                if turn < WARM_UP:
                    continue
                samples = found[way.name]
                samples.eager.append(eager)
                samples.host.append(host)
                if replayed is not None:
                    samples.replayed.append(replayed)
        return found


def enqueue(way: Way, writes: int) -> float:
    """Returns microseconds of the host per write."""
    write, numbers = way.write, range(writes)
    begin = time.perf_counter_ns()
    for number in numbers:
        write(number)
    return (time.perf_counter_ns() - begin) / writes / MICRO


def between_events(work: Callable[[], object]) -> float:
    """Returns microseconds of the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * MICRO
