"""A way to write: ours, or somebody else's."""

import dataclasses
import enum
from collections.abc import Callable, Sequence

import torch


class Role(enum.Enum):
    """What a way is compared as."""

    OURS = "ours"
    # Ours with other options, beside the comparison.
    VARIANT = "variant"
    PEER = "peer"
    # As many bytes, to no particular place.
    CEILING = "ceiling"


def nothing() -> None:
    """What most have to do before a check."""


@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """All tensors of one write of a case, by its number."""

    name: str
    role: Role
    # Enqueues it on PyTorch's current stream, or on a stream of its own, for which `wait` waits.
    write: Callable[[int], object]
    # Whether a CUDA graph can hold it.
    is_capturable: bool = True
    wait: Callable[[], None] | None = None
    # Its caches, where they are memory of its own.
    caches: Callable[[], Sequence[list[torch.Tensor]]] | None = None
    start_over: Callable[[], None] = nothing


class Absent(Exception):
    """A peer that is not here, or has no way to write this case; says why."""
