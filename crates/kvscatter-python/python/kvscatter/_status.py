"""The contents of a status on a device."""

from __future__ import annotations

from typing import NamedTuple


class StatusWords(NamedTuple):
    """The bad indices that launches have counted since the status was cleared. All words are zero if there
    are none.

    ``Status.check(words)`` raises the error that these words describe.
    """

    bad_samples: int
    """The number of samples with a bad index. A sample counts once per launch."""
    first_sample: int
    """The first of these samples, with flags in its high bits. Bit 31 means that its length is bad and not
    its position. Bits 31 and 30 mean that its rows in a packed update are bad. All bits mean that the layer
    is bad."""
    first_value: int
    """The bad position, length, number of rows or layer, as ``first_sample`` indicates."""


StatusWords.__module__ = "kvscatter.cuda"
