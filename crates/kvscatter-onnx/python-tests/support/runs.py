"""Runs three samples in a static cache, and compares each with the original at every step.

A *stream* is the tokens of one sample. The original reads every stream alone, in a batch of one, and its
caches grow. The converted decoder reads all streams at once, in the steps that a test chooses.
"""

import dataclasses
import itertools
import pathlib

import numpy as np

from support.decoder import Growing, Static, grouped_queries

VOCABULARY = 60  # the smallest of the checked-in decoders has 64 tokens
SLOTS = 16
LENGTHS = (2, 5, 9)  # the lengths of the prompts

# The largest difference between two ways of the same computation, relative to the largest logit or cache entry
# of a run. In float32, the order of sums differs. In float16, a few steps of 2^-11 add up over two layers.
TOLERANCE = {np.float32: 2e-5, np.float16: 1e-2}


@dataclasses.dataclass(frozen=True)
class Reference:
    """The results of the original for one stream."""

    tokens: np.ndarray  # [tokens]
    logits: np.ndarray  # [tokens, vocabulary]
    caches: dict[str, np.ndarray]  # [heads, tokens, head size]


def reference(original: Growing, tokens: np.ndarray) -> Reference:
    """Feeds a prompt of two tokens, a chunk of three, then one token at a time."""
    original.start(1)
    logits, end = [], 0
    while end < len(tokens):
        start, end = end, min(len(tokens), {0: 2, 2: 5}.get(end, end + 1))
        ids, positions = tokens[None, start:end], np.arange(start, end)[None]
        logits.append(original.step(ids, np.ones((1, end), np.int64), positions)[0])
    caches = {name: cache[0] for name, cache in original.caches.items()}
    return Reference(tokens, np.concatenate(logits), caches)


def references(model: pathlib.Path) -> list[Reference]:
    """Returns three streams, each as long as the cache."""
    original = Growing(model)
    streams = np.random.default_rng(6).integers(1, VOCABULARY, (len(LENGTHS), SLOTS))
    return [reference(original, stream) for stream in streams]


def canaries(index: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns finite values, |x| ≤ 1, that differ between slots and caches. Attention must not read them."""
    return ((np.arange(np.prod(shape)).reshape(shape) + 31 * index) % 251 - 125) / 125


def close(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    tolerance = TOLERANCE[expected.dtype.type] * max(1.0, float(np.abs(expected).max(initial=0)))
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
    assert difference <= tolerance, f"{what} off by {difference:.3g}, allowed {tolerance:.3g}"


class Batch:
    """The converted decoder with some samples, and the number of tokens that each has read."""

    def __init__(self, model: pathlib.Path, samples: list[Reference], paint=canaries):
        self.decoder = Static(model, len(samples), paint)
        self.samples = samples
        self.read = np.zeros(len(samples), np.int64)
        assert self.decoder.slots == SLOTS

    def step(self, counts: tuple[int, ...], unread: int) -> None:
        """Feeds each sample's next tokens, padded on the right to the largest number of tokens.

        A slot that contains no token of a sample yet has the value `unread` in the attention mask, 0 or 1.
        Slots after a token are invisible to it in either case.
        """
        width = max(counts)
        ids = np.zeros((len(counts), width), np.int64)
        positions = self.read[:, None] + np.arange(width)
        for sample, count in enumerate(counts):
            ids[sample, :count] = self.samples[sample].tokens[self.read[sample] :][:count]
        after = self.read + counts
        mask = np.where(np.arange(SLOTS) < after[:, None], 1, unread)
        before = self.decoder.snapshot()
        logits = self.decoder.step(ids, mask, positions, self.read.copy())
        for sample, count in enumerate(counts):
            expected, start = self.samples[sample], self.read[sample]
            rows = slice(start, start + count)
            close(logits[sample, :count], expected.logits[rows], f"logits of sample {sample} from {start}")
            for name, cache in self.decoder.snapshot().items():
                assert np.isfinite(cache).all(), name
                close(cache[sample, :, rows], expected.caches[name][:, rows], f"{name} of sample {sample}")
                others = np.delete(cache[sample], np.s_[start : start + width], axis=1)
                untouched = np.delete(before[name][sample], np.s_[start : start + width], axis=1)
                assert others.tobytes() == untouched.tobytes(), f"{name}: rows beside {start} changed"
        self.read = after


def padded_between(original: pathlib.Path, converted: pathlib.Path, samples: list[Reference]) -> None:
    """Runs samples with padding between their tokens, in chunks, and compares with the original."""
    growing, static = Growing(original), Static(converted, len(samples), canaries)
    growing.start(len(samples))
    columns = np.arange(SLOTS)
    mask = np.stack([(columns < start) | (columns >= end) for start, end in [(2, 6), (4, 5), (0, 0)]])
    mask = mask.astype(np.int64)
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    ids = np.stack([sample.tokens[:SLOTS] for sample in samples])
    for start, end in itertools.pairwise([0, 7, 10, *range(11, SLOTS + 1)]):
        new = slice(start, end)
        expected = growing.step(ids[:, new], mask[:, :end], positions[:, new])
        seen = np.where(columns < end, mask, 0)
        logits = static.step(ids[:, new], seen, positions[:, new], np.full(len(samples), start, np.int64))
        for sample in range(len(samples)):
            real = mask[sample, new] == 1
            close(logits[sample, real], expected[sample, real], f"logits of sample {sample} from {start}")


def left_padded(
    original: pathlib.Path, converted: pathlib.Path, samples: list[Reference], unread: int
) -> None:
    """Runs prompts of different lengths that end in one column, so that all share a write index.

    GroupQueryAttention does not support padding on the left. Its results are those of each sample alone, and
    the keys in its cache are rotated by the slots.
    """
    supports_it = not grouped_queries(original)
    width = max(LENGTHS)
    pads = width - np.array(LENGTHS)
    growing, static = Growing(original), Static(converted, len(samples), canaries)
    growing.start(len(samples))
    columns = np.arange(SLOTS)
    visible = (columns >= pads[:, None]).astype(np.int64)
    positions = np.maximum(columns - pads[:, None], 0)
    ids = np.zeros((len(samples), SLOTS), np.int64)
    for sample, pad in enumerate(pads):
        ids[sample, pad:] = samples[sample].tokens[: SLOTS - pad]
    for start, end in [(0, width), *((at, at + 1) for at in range(width, SLOTS))]:
        new = slice(start, end)
        expected = growing.step(ids[:, new], visible[:, :end], positions[:, new]) if supports_it else None
        mask = np.where(columns < end, visible, unread)
        before = static.snapshot()
        logits = static.step(ids[:, new], mask, positions[:, new], np.full(len(samples), start, np.int64))
        for sample, pad in enumerate(pads):
            real = slice(max(start, pad), end)
            here = slice(real.start - start, None)
            if expected is not None:
                close(logits[sample, here], expected[sample, here], f"logits of sample {sample} from {start}")
            alone = samples[sample].logits[real.start - pad : end - pad]
            close(logits[sample, here], alone, f"logits of sample {sample}, unpadded, from {start}")
            for name, cache in static.snapshot().items():
                assert np.isfinite(cache).all(), name
                if expected is not None:
                    close(cache[sample, :, real], growing.caches[name][sample, :, real], name)
                others = np.delete(cache[sample], np.s_[start:end], axis=1)
                assert others.tobytes() == np.delete(before[name][sample], np.s_[start:end], axis=1).tobytes()
