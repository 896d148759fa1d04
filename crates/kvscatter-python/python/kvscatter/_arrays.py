"""Converts arguments to arrays for the modules that are written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscatter.errors import ArrayError

Array = npt.NDArray[Any]


def as_array(argument: str, value: object) -> Array:
    """Converts a value as ``numpy.asarray`` does, but raises an error for a masked array instead of dropping
    its mask.

    Raises ``ArrayError`` of kind ``tensor``, like the compiled module.
    """
    if isinstance(value, np.ma.MaskedArray):
        message = f"{argument} is a masked array, whose mask a write would ignore: pass its data"
        raise ArrayError(message, "tensor", argument)
    return np.asarray(value)
