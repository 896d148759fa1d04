"""What depends on the version of transformers in the tests of `kvscatter.torch.KvCache`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

TRANSFORMERS = tuple(int(part) for part in transformers.__version__.split(".")[:2])

drafts = pytest.mark.skipif(
    TRANSFORMERS < (5, 9),
    reason="this transformers refuses to draft tokens with a cache that can be compiled",
)

CROP_KEEPS = TRANSFORMERS < (5, 15)
"""Whether `crop` with a positive number keeps this number of tokens."""


def positions(first: int, rows: int) -> dict[str, Any]:
    """Returns the positions of a step that is compiled or exported. Older models would read them from the cache,
    which ends the graph."""
    return {"cache_position": torch.arange(first, first + rows)} if TRANSFORMERS < (5, 4) else {}
