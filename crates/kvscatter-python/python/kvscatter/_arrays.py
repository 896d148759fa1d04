"""Arrays as the parts of this package that are written in Python take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscatter.errors import ArrayError

Array = npt.NDArray[Any]


def as_array(argument: str, value: object) -> Array:
    """What ``numpy.asarray`` makes of it, but that a mask is not dropped.

    Raises ``ArrayError`` of kind ``tensor``, as the compiled module does.
    """
    if isinstance(value, np.ma.MaskedArray):
        message = f"{argument} is a masked array, whose mask a write does not see: give its data"
        raise ArrayError(message, "tensor", argument)
    return np.asarray(value)
