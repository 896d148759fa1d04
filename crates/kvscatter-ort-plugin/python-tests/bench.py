"""Compares the time per call with ONNX Runtime's own kernel, in one process.

    cargo xtask ort-bench [--quick] [--write-docs]

Each engine writes the same case into a separate cache. The complete results are compared before anything is
timed. Every round samples each engine once, in a shuffled order, and ratios are taken within a round. The
built-in kernel has two turns per round. The A/A spread is the range of its ratio to itself.
"""

import argparse
import ctypes
import dataclasses
import itertools
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from support import models
from support.sessions import LIBRARY, PROVIDER, builtin, plugin

sys.path.append(str(pathlib.Path(__file__).parents[3] / "bench"))

import pages
from paired import BLOCKS, Samples, judged, noise, ratio

PAGE = pages.ROOT / "docs" / "onnxruntime.md"

SAMPLE = 200_000  # nanoseconds; a sample is as many calls as fill it
WARM_UP = 5

Call = Callable[[], None]


@dataclasses.dataclass
class Case:
    """A case in float16. The sequence is at axis -2, except in the ring."""

    label: str
    cache: tuple[int, ...]
    rows: int
    # The limit of the ratio to `against`. A case without a limit has no target.
    limit: float | None
    against: str = "built-in"
    axis: int = -2
    mode: str = "linear"
    in_place: bool = True
    threads: int = 1
    # Whether every call writes the slots after those of the previous call, as a decoder does.
    advances: bool = False


DECODED = {
    "1 sample": (1, 8, 4096, 128),
    "8 samples": (8, 8, 4096, 128),
    "64 samples": (64, 8, 2048, 128),
}
RING = {"cache": (8, 8, 128, 4096), "rows": 512, "axis": -1, "mode": "circular"}

CASES = [
    *[Case(f"1 row, {samples}", cache, 1, 1.0, advances=True) for samples, cache in DECODED.items()],
    *[Case(f"the same row again and again, {samples}", cache, 1, None) for samples, cache in DECODED.items()],
    Case("512 rows, 8 samples", (8, 8, 2048, 128), 512, None),
    Case("a ring along axis -1, 512 positions", limit=1 / 20, **RING),
    Case("a ring along axis -1, 512 positions, 2 threads", limit=None, threads=2, **RING),
    Case("not aliased, 1 row", (8, 8, 4096, 128), 1, 1.03, "memcpy of the cache", in_place=False),
    Case("not aliased, 1 row, 2 threads", (8, 8, 4096, 128), 1, None, in_place=False, threads=2),
]


def engines(case: Case) -> dict[str, Call]:
    """Returns the engines to time, after checking that all of them write the same."""
    update_shape = list(case.cache)
    update_shape[case.axis] = case.rows
    update = np.random.default_rng(1).integers(0, 1 << 15, update_shape, np.uint16).view(np.float16)
    last = case.cache[case.axis] - (case.rows if case.mode == "linear" else 1)
    first = np.random.default_rng(2).integers(0, last + 1, case.cache[0])
    first[0] = last
    steps = [((first + step) % (last + 1)).tobytes() for step in range(last + 1 if case.advances else 1)]
    model = models.tensor_scatter(TensorProto.FLOAT16, axis=case.axis, mode=case.mode)

    def engine(session: ort.InferenceSession) -> tuple[Call, np.ndarray]:
        past = filled(case.cache)
        present = past if case.in_place else filled(case.cache)
        indices = first.copy()
        binding = session.io_binding()
        feed = {"past_cache": past, "update": update, "write_indices": indices}
        for name, array in feed.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        binding.bind_output("present_cache", "cpu", 0, present.dtype, present.shape, present.ctypes.data)

        # This is the runtime's own entry point, because the Python wrapper takes as long as a small write.
        def again(run=session._sess.run_with_iobinding, bound=binding._iobinding, keep=(feed, present)):
            run(bound, None)

        def onwards(run=again, at=memoryview(indices).cast("B"), following=itertools.cycle(steps)):
            at[:] = next(following)
            run()

        call = onwards if case.advances else again
        for _ in range(3):
            call()
        return call, present

    ours, our_present = engine(plugin(model, case.threads))
    theirs, their_present = engine(builtin(model, case.threads))
    if our_present.tobytes() != their_present.tobytes():
        raise SystemExit(f"{case.label}: the plugin and the built-in kernel disagree")
    found: dict[str, Call] = {"built-in": theirs, "kvscatter": ours, "built-in again": theirs}
    if case.against not in found:
        found[case.against] = memcpy(filled(case.cache), filled(case.cache))
    return found


def filled(shape: tuple[int, ...]) -> np.ndarray:
    """Returns memory that has been written. Memory that was only allocated reads as one cached page."""
    return np.full(shape, 1, np.float16)


def memcpy(to: np.ndarray, source: np.ndarray) -> Call:
    """Returns a call that copies a whole cache with one memcpy."""
    function = ctypes.CDLL(None).memcpy
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    destination, origin, size = to.ctypes.data, source.ctypes.data, to.nbytes
    return lambda keep=(to, source): function(destination, origin, size)


def sample(call: Call, repeats: int) -> float:
    """Returns the nanoseconds per call."""
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return (time.perf_counter_ns() - begin) / repeats


def measure(case: Case, seconds: float) -> dict[str, list[float]]:
    """Returns the samples of each engine, one for each round."""
    calls = engines(case)
    repeats = {name: max(1, round(SAMPLE / sample(call, WARM_UP))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, end = list(calls), time.monotonic() + seconds
    while time.monotonic() < end or len(samples["kvscatter"]) < 5 * BLOCKS:
        random.shuffle(order)
        for name in order:
            samples[name].append(sample(calls[name], repeats[name]))
    return samples


def verdict(value: float, limit: float | None, spread: tuple[float, float]) -> str:
    """Returns the verdict on a ratio, or a dash if it has no limit."""
    return "–" if limit is None else judged(limit, value * spread[0], value * spread[1])


def line(case: Case, samples: Samples) -> str:
    spread = noise(samples, "built-in")
    times = {name: pages.shown(statistics.median(of)) for name, of in samples.items()}
    value = ratio(samples, "kvscatter", case.against)
    compared = times[case.against] + (", memcpy" if case.against != "built-in" else "")
    cells = [
        case.label,
        "×".join(map(str, case.cache)),
        times["built-in"],
        times["kvscatter"],
        f"{value:.3g} × {compared}",
        "–" if case.limit is None else f"{case.limit:.3g}",
        f"{spread[0]:.2f} – {spread[1]:.2f}",
        verdict(value, case.limit, spread),
    ]
    return f"| {' | '.join(cells)} |"


def table(seconds: float) -> str:
    rows = [
        "| case | float16 cache | built-in | kvscatter | ratio | at most | A/A spread | |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for case in CASES:
        rows.append(line(case, measure(case, seconds)))
        print(rows[-1], flush=True)
    return "\n".join([*rows, "", f"{pages.machine('onnxruntime')}."])


def main() -> None:
    options = argparse.ArgumentParser(prog="cargo xtask ort-bench")
    options.add_argument("--quick", action="store_true", help="half a second a case, to see that things work")
    options.add_argument("--write-docs", action="store_true", help="put the table into docs/onnxruntime.md")
    given = options.parse_args()
    random.seed(1)
    ort.set_default_logger_severity(4)
    ort.register_execution_provider_library(PROVIDER, LIBRARY)
    text = table(0.5 if given.quick else 10)
    print(f"\n{text}")
    if given.write_docs:
        pages.write(PAGE, "cargo xtask ort-bench", text)


if __name__ == "__main__":
    main()
