"""Measures a write from Python: this package, NumPy, PyTorch, ONNX Runtime and JAX, in one process.

    cargo xtask peers [--quick] [--write-docs]

Every engine first writes into a cache with random contents, and the whole cache is compared with the result
of a loop over the rows. Then every round samples each engine once, in an order that changes. All engines
write the same memory at the same ragged positions, except for JAX, which has its own memory.
"""

import argparse
import random
import statistics
import time

import numpy as np

import engines
import pages
import report
from cases import CASES, Case

PAGE = pages.ROOT / "docs" / "python.md"

SAMPLE = 200_000  # nanoseconds of a sample, which repeats the call to fill them
WARM_UP = 3
FEWEST_ROUNDS = 40


def inputs(case: Case) -> engines.Inputs:
    """Returns a cache with random contents, an update, and the first slot of each sample."""
    random_numbers = np.random.default_rng(1)
    batch, heads, capacity, width = case.cache
    paint = random_numbers.integers(0, 1 << 15, case.cache, np.uint16)
    update = random_numbers.integers(0, 1 << 15, (batch, heads, case.rows, width), np.uint16)
    starts = random_numbers.integers(0, capacity - case.rows + 1, batch)
    starts[0] = capacity - case.rows
    return engines.Inputs(paint.view(np.float16), update.view(np.float16), starts)


def expected(given: engines.Inputs) -> np.ndarray:
    """Returns the cache after the write, computed row by row."""
    cache = given.cache.copy()
    for sample, start in enumerate(given.starts):
        for head in range(cache.shape[1]):
            for row in range(given.update.shape[2]):
                cache[sample, head, start + row] = given.update[sample, head, row]
    return cache


def checked(case: Case) -> list[engines.Engine]:
    """Returns the engines after checking that each writes the case correctly."""
    given = inputs(case)
    wanted, painted = expected(given), given.cache.copy()
    found = []
    for engine in [engine for make in engines.ALL for engine in make(given)]:
        given.cache[:] = painted
        engine.sample(1)
        if not np.array_equal(engine.cache().view(np.uint16), wanted.view(np.uint16)):
            raise SystemExit(f"{case.label}: {engine.name} writes the wrong values")
        found.append(engine)
    return [*found, *engines.memcpy(given)]


def measure(case: Case, seconds: float) -> dict[str, list[float]]:
    """Returns the nanoseconds per call of each engine, one sample for each round."""
    found = checked(case)
    calls = {engine: max(1, round(SAMPLE * WARM_UP / engine.sample(WARM_UP))) for engine in found}
    samples: dict[str, list[float]] = {engine.name: [] for engine in found}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(samples[engines.OURS]) < FEWEST_ROUNDS:
        random.shuffle(found)
        for engine in found:
            engine.sample(1)  # replaces what other engines left in the processor's caches
            samples[engine.name].append(engine.sample(calls[engine]) / calls[engine])
    return samples


def main() -> None:
    """Prints the tables and, with `--write-docs`, updates the page."""
    options = argparse.ArgumentParser(prog="cargo xtask peers")
    options.add_argument("--quick", action="store_true", help="a second a case, to see that things work")
    options.add_argument("--write-docs", action="store_true", help="rewrite the tables of docs/python.md")
    given = options.parse_args()
    random.seed(1)
    results = {}
    for case in CASES:
        results[case] = measure(case, 1 if given.quick else 55)
        medians = {name: pages.shown(statistics.median(of)) for name, of in results[case].items()}
        print(
            f"{case.label}: {', '.join(f'{name} {median}' for name, median in medians.items())}", flush=True
        )
    text = report.page(results)
    print(f"\n{text}")
    if given.write_docs:
        pages.write(PAGE, "cargo xtask peers", text)


if __name__ == "__main__":
    main()
