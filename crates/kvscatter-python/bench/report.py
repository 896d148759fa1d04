"""Writes the tables."""

import statistics
from collections.abc import Mapping, Sequence

import engines
from cases import Case
from pages import machine, shown
from paired import Samples, judged, noise, ratio

# Limits for a prepared call minus the Rust call inside it, in nanoseconds.
NUMPY_OVERHEAD = 350
DLPACK_OVERHEAD = 800
# The limit for the ratio to the best peer's time. If the peer takes more than `EASY` times memcpy's time,
# the limit is 1.
RATIO = 1.03
EASY = 1.2


def page(results: Mapping[Case, Samples]) -> str:
    """Returns both tables and the machine as Markdown."""
    versions = machine("numpy", "torch", "onnxruntime", "jax")
    return "\n\n".join([times(results), targets(results), f"{versions}; one thread each.", ""])


def times(results: Mapping[Case, Samples]) -> str:
    """Returns a table with a row for each engine and a column for each case: the median and the range of
    four out of five rounds."""
    lines = [f"| | {' | '.join(case.label for case in results)} |", f"|---|{'--:|' * len(results)}"]
    for name in [
        engines.MEMCPY,
        engines.RUST,
        engines.OURS,
        engines.OURS_DLPACK,
        engines.OURS_JAX,
        *engines.PEERS,
    ]:
        cells = [spread(samples[name]) for samples in results.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(results: Mapping[Case, Samples]) -> str:
    """Returns a table with a row for each case: the added time of the call from Python, the ratio to the best
    peer, and that of the call in JAX to JAX's own."""
    lines = [
        f"| | over the Rust call, at most {NUMPY_OVERHEAD} ns | by DLPack, at most {DLPACK_OVERHEAD} ns "
        "| best peer in place | its time | of its time, at most | in JAX: of JAX, at most | A/A spread |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    for case, samples in results.items():
        best = min(engines.PEERS, key=lambda name: statistics.median(samples[name]))
        limit = 1.0 if ratio(samples, best, engines.MEMCPY) > EASY else RATIO
        ratios = [
            (ratio(samples, engines.OURS, best), limit),
            (ratio(samples, engines.OURS_JAX, engines.JAX), case.jax_limit),
        ]
        least, most = noise(samples, engines.OURS)
        cells = [
            case.label,
            overhead(samples, engines.OURS, NUMPY_OVERHEAD),
            overhead(samples, engines.OURS_DLPACK, DLPACK_OVERHEAD),
            best,
            f"{ratio(samples, best, engines.MEMCPY):.3g} × memcpy",
            *(
                f"{value:.2f}, {limit:g}: {judged(limit, value * least, value * most)}"
                for value, limit in ratios
            ),
            f"{least:.2f} – {most:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def overhead(samples: Samples, name: str, limit: float) -> str:
    """Returns the time that a call adds to the Rust call, by rounds. Its uncertainty is proportional to the
    call's own time."""
    value = statistics.median(a - b for a, b in zip(samples[name], samples[engines.RUST], strict=True))
    least, most = (statistics.median(samples[name]) * (strays - 1) for strays in noise(samples, engines.OURS))
    return f"{shown(value)}: {judged(limit, value + least, value + most)}"


def spread(samples: Sequence[float]) -> str:
    """Returns the median, and the first and the last of nine deciles."""
    deciles = statistics.quantiles(samples, n=10)
    return f"{shown(statistics.median(samples))} ({shown(deciles[0])} – {shown(deciles[-1])})"
