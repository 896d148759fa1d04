"""What depends on the version of transformers in the tests of `kvscatter.torch.KvCache`."""

from __future__ import annotations

import pytest
import torch
import transformers

VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])

CACHE = "cache" if VERSION >= (5, 24) else "past_key_values"
"""The name of the argument of models and of `generate` that takes a cache."""

CROP_KEEPS = VERSION < (5, 15)
"""Whether `crop` with a positive number keeps this number of tokens."""

needs_drafting = pytest.mark.skipif(
    VERSION < (5, 15),
    reason="this transformers does not draft tokens with caches of a fixed size or with windows",
)


def cache_position(positions: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the argument that models before transformers 5.4 need in a graph. Without it, they read the position
    from the cache, which breaks the graph."""
    return {"cache_position": positions} if VERSION < (5, 4) else {}
