"""A way to write: ours, or that of another library."""

import dataclasses
import enum
from collections.abc import Callable, Sequence

import torch


class Role(enum.Enum):
    """The role of a way in the comparison."""

    OURS = "ours"
    # Our write with other options, which is not part of the comparison.
    VARIANT = "variant"
    PEER = "peer"
    # A copy of the same number of bytes to other memory.
    CEILING = "ceiling"


def nothing() -> None:
    """Does nothing, which most ways need before a check."""


@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """A way to write all tensors of one write of a case, by the write's number."""

    name: str
    role: Role
    # Enqueues the write on PyTorch's current stream, or on another stream, for which `wait` waits.
    write: Callable[[int], object]
    # Whether a CUDA graph can capture the write.
    is_capturable: bool = True
    wait: Callable[[], None] | None = None
    # The way's caches, if it does not use the caches of the case.
    caches: Callable[[], Sequence[list[torch.Tensor]]] | None = None
    start_over: Callable[[], None] = nothing


class Absent(Exception):
    """A peer is not installed, or cannot write this case. The message is the reason."""
