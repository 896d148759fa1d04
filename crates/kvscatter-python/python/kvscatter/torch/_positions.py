"""Converts sequences of integers to the tensors that the operators take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch

from kvscatter import errors


@overload
def tensor_of(values: torch.Tensor | Sequence[int], argument: str, like: torch.Tensor) -> torch.Tensor: ...
@overload
def tensor_of(
    values: torch.Tensor | Sequence[int] | None, argument: str, like: torch.Tensor
) -> torch.Tensor | None: ...
def tensor_of(
    values: torch.Tensor | Sequence[int] | None, argument: str, like: torch.Tensor
) -> torch.Tensor | None:
    """Returns a tensor of the values on the device of ``like``. A tensor stays as it is."""
    if values is None or isinstance(values, torch.Tensor):
        return values
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        message = f"{argument} is of type {type(values).__name__}: must be a tensor or a sequence of integers"
        raise errors.ElementTypeError(message, "not_integers", argument)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer, torch.SymInt)):
            message = f"{argument} holds {type(value).__name__}: must hold integers"
            raise errors.ElementTypeError(message, "not_integers", argument)
    return torch.tensor(values, dtype=torch.int64, device=like.device)
