"""What a session tells."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheMemory", "Generated", "MemoryReport"]


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """What a cache takes."""

    past: str
    """The model's input."""
    dtype: str
    """Its type, by its NumPy name."""
    shape: tuple[int, ...]
    layer: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a session's caches take, in bytes."""

    caches: tuple[CacheMemory, ...]
    """Every cache, in the order of the model's inputs."""
    layers: tuple[int, ...]
    """The caches of each layer together."""
    per_token: int
    """One token of one sample, in all caches."""
    total: int
    """All caches."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated, and at what cost."""

    samples: list[list[int]]
    """The tokens after each prompt, in the order of the prompts."""
    prompt_tokens: int
    """Tokens of all prompts."""
    prefill_seconds: float
    """The time of the prompts."""
    steps: int
    """Steps after the prompts."""
    decoded: int
    """Tokens that these steps gave, of all samples."""
    decode_seconds: float
    """Their time, choosing tokens included."""
    written_per_step: int
    """Bytes that the last step wrote into the caches; of caches that grow, all of them."""
    copied: int
    """Bytes of static caches that ONNX Runtime copied, in all steps, instead of writing them in place."""
