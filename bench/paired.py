"""Ratios of samples that were taken in turn. Every engine has one sample in each round."""

import statistics
from collections.abc import Mapping, Sequence

Samples = Mapping[str, Sequence[float]]

BLOCKS = 8


def ratio(samples: Samples, of: str, to: str) -> float:
    """Returns the median ratio of rounds. A slow moment of the machine affects both times of a round."""
    return statistics.median(a / b for a, b in zip(samples[of], samples[to], strict=True))


def noise(samples: Samples, name: str) -> tuple[float, float]:
    """Returns the smallest and the largest of 1 and the median ratios, by blocks of rounds, of an engine to itself.
    Its second samples are those of `NAME again`."""
    again = f"{name} again"
    size = len(samples[name]) // BLOCKS
    starts = range(0, BLOCKS * size, size)
    blocks = [{each: samples[each][at : at + size] for each in (name, again)} for at in starts]
    medians = [ratio(block, again, name) for block in blocks]
    return min(1.0, *medians), max(1.0, *medians)


def judged(limit: float, least: float, most: float) -> str:
    """Returns the verdict on the limit, which is "inside the spread" if the noise could reverse it."""
    if most <= limit:
        return "met"
    return "missed" if least > limit else "inside the spread"
