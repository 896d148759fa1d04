"""What a status on a device holds."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StatusWords"]


class StatusWords(NamedTuple):
    """Bad indices that launches have found since the status was cleared; zeros if there are none.

    ``Status.check(words)`` raises for them what they mean.
    """

    bad_samples: int
    """Samples with a bad index, each counted once per launch."""
    first_sample: int
    """The first of them, with bit 31 for its length instead of its position, bits 31 and 30 for its rows in a packed
    update, and all bits for the layer."""
    first_value: int
    """What was bad."""


StatusWords.__module__ = "kvscatter.cuda"
