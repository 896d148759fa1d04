"""Rows of a cache in other types than the model's. The Rust module ``kvscatter::quantize`` states the same rule.

A row is the vector of one token and one head. Of a row ``x``, an int8 cache holds codes and a scale:

- ``scale = max(max|x| * float32(1 / 127), 2**-100)``, in float32
- ``codes = x / scale``, rounded to the nearest integer, ties to even
- ``codes * scale`` is read, which differs from ``x`` by at most ``scale * (1/2 + 2**-16)`` in each element

A row with NaN or an infinity has the scale NaN and codes of 0, so it is read as NaN.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from kvscatter import errors

_TYPES = {dtype: getattr(torch, dtype) for dtype in ("float32", "float16", "bfloat16", "int8")}
_MIN_BLOCK = 16
"""In smaller blocks, a rotation does not spread large elements enough to be of use."""


def element_type(cache_type: str | None) -> torch.dtype | None:
    """Returns the element type of this name. Raises `errors.OptionError` for any other name."""
    if cache_type is None:
        return None
    if not isinstance(cache_type, str) or cache_type not in _TYPES:
        message = f'cache_type = "{cache_type}": must be float32, float16, bfloat16 or int8'
        raise errors.OptionError(message, "choice", "cache_type")
    found: torch.dtype = _TYPES[cache_type]
    return found


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the int8 codes of ``rows``, ``[.., size]``, and their float32 scales, ``[.., 1]``."""
    rows = rows.float()
    most = rows.abs().amax(-1, keepdim=True)
    scales = (most * (1 / 127)).clamp(min=2.0**-100)  # torch rounds a factor to float32
    scales = scales.where(most.isfinite(), torch.nan)
    return (rows / scales).round().nan_to_num(0.0).to(torch.int8), scales


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns the float32 rows of codes and scales."""
    return codes * scales


def rotate(rows: torch.Tensor) -> torch.Tensor:
    """Returns ``rows`` in float32, times the orthonormal Hadamard matrix in blocks of the largest power of two that
    divides their size. Rows whose blocks have fewer than 16 elements stay as they are. Another rotation inverts it.

    Large elements of a few channels make the scale of a key large, and all its other elements inexact. The rotation
    spreads them over the row.
    """
    rows, block = rows.float(), rows.shape[-1] & -rows.shape[-1]
    if block < _MIN_BLOCK:
        return rows
    matrix = rows.new_full((1, 1), block**-0.5)
    while matrix.shape[0] < block:
        matrix = torch.cat((torch.cat((matrix, matrix)), torch.cat((matrix, -matrix))), 1)
    device = rows.device.type
    # Under autocast, a product is otherwise computed in half precision.
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        rotated: torch.Tensor = (rows.unflatten(-1, (-1, block)) @ matrix).flatten(-2)
    return rotated
