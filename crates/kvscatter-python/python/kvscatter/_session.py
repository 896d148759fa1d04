"""The data that a session returns."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheMemory", "Generated", "MemoryReport"]


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """The memory of one cache."""

    past: str
    """The name of the model's input."""
    dtype: str
    """The element type, by its NumPy name."""
    shape: tuple[int, ...]
    layer: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of a session's caches, in bytes."""

    caches: tuple[CacheMemory, ...]
    """All caches, in the order of the model's inputs."""
    layers: tuple[int, ...]
    """The bytes of each layer's caches."""
    per_token: int
    """The bytes of one token of one sample, in all caches. In a ring, later tokens take the place of earlier ones."""
    rings: int
    """The number of caches that are rings."""
    states: int
    """The bytes of all states, such as those of convolutions. A session has them twice."""
    undo: int
    """The bytes allocated for copies of rows and states, with which samples go back."""
    total: int
    """The bytes of all caches."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The generated tokens, and the cost of generating them."""

    samples: list[list[int]]
    """The tokens after each prompt, in the order of the prompts."""
    prompt_tokens: int
    """The number of tokens in all prompts."""
    prefill_seconds: float
    """The time spent on the prompts."""
    steps: int
    """The number of steps after the prompts."""
    decoded: int
    """The number of tokens that these steps generated, for all samples together."""
    decode_seconds: float
    """The time of these steps, including the choice of tokens."""
    written_per_step: int
    """The bytes that the last step wrote into the caches. If the caches grow, this counts all of their
    bytes."""
    copied: int
    """The bytes of static caches that ONNX Runtime copied, in all steps, instead of writing them in
    place."""
    engine: str
    """The name and version of ONNX Runtime and its plugin."""
