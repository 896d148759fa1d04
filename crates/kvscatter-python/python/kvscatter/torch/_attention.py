"""The function ``kvscatter.torch.attention``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from kvscatter import _integers, errors
from kvscatter._typing import AttentionLayout
from kvscatter.torch import _attention_derivatives, _derivatives, _ops
from kvscatter.torch._attention_math import ReadArguments
from kvscatter.torch._positions import tensor_of

_overridden: Any = handle_torch_function


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor | Sequence[int] | None = None,
    *,
    starts: torch.Tensor | Sequence[int] | None = None,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = 0.0,
    mask: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    mode: _ops.Mode = "linear",
    layout: AttentionLayout = "bhsd",
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    block_tables: torch.Tensor | Sequence[Sequence[int]] | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Computes attention of queries over the slots of a cache that contain tokens, and reads no others.

    The arguments are those of ``kvscatter.attention``, which documents them. ``lengths``, ``starts`` and
    ``block_tables`` may be tensors or sequences. The default of ``threads`` is ``torch.get_num_threads()``. Tensors may
    be strided. Rows of ``q``, ``k`` and ``v`` whose elements are not neighbours in memory are copied.

    If gradients are recorded, PyTorch's own operators compute the result, with the scores of all slots in memory. The
    function is then differentiable in ``q``, ``k``, ``v``, ``mask``, ``sink`` and the scales. Hidden slots have a
    gradient of 0. PyTorch's operators also compute queries of float64.

    It raises the same errors as ``kvscatter.attention``, and `errors.DeviceError` for tensors on a device.
    """
    given = (q, k, v, lengths, starts, mask, sink, k_scale, v_scale, block_tables)
    options: dict[str, Any] = {
        "causal": causal,
        "window": window,
        "scale": scale,
        "softcap": softcap,
        "mode": mode,
        "layout": layout,
        "threads": threads,
    }
    if has_torch_function(given):
        options |= {"starts": starts, "mask": mask, "sink": sink, "k_scale": k_scale, "v_scale": v_scale}
        result: torch.Tensor = _overridden(attention, given, *given[:4], block_tables=block_tables, **options)
        return result
    call = ReadArguments(
        q,
        k,
        v,
        tensor_of(lengths, "lengths", q),
        tensor_of(starts, "starts", q),
        bool(causal),
        None if window is None else _integers.within("window", window, 1, 2**63 - 1),
        None if scale is None else _number(scale, "scale"),
        0.0 if softcap is None else _number(softcap, "softcap"),
        mask,
        sink,
        mode,
        layout,
        k_scale,
        v_scale,
        _tables(block_tables, q),
        None if threads is None else _integers.within("threads", threads, 1, 1024),
    )
    output: torch.Tensor
    if _derivatives.is_traced_forward_mode():
        output = _attention_derivatives.recorded(call)
    else:
        output = torch.ops.kvscatter.attention(*call)
    return output


def _number(value: float, argument: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        message = f"{argument} is of type {type(value).__name__}: must be a number"
        raise errors.ElementTypeError(message, "keyword_type", argument) from None


def _tables(tables: torch.Tensor | Sequence[Sequence[int]] | None, q: torch.Tensor) -> torch.Tensor | None:
    if tables is None or isinstance(tables, torch.Tensor):
        return tables
    rows = [tensor_of(row, "block_tables", q) for row in tables]
    if len({len(row) for row in rows}) > 1:
        message = "block_tables has rows of different lengths"
        raise errors.ShapeError(message, "list_length", "block_tables")
    if not rows:
        return torch.zeros(0, 0, dtype=torch.int64, device=q.device)
    return torch.stack(rows)
