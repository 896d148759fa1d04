"""Translates ``kvscatter::attention`` to ONNX Attention of opset 24, and to standard operators around it.

ONNX Attention knows lengths and causality, but no rings, windows, starts, sinks, scales or blocks. Rings, windows and
starts become a mask. A sink becomes one more slot, whose value is 0. Codes are multiplied with their scales, and blocks
are gathered, so these copy the cache.
"""

from __future__ import annotations

from typing import Any

from onnxscript import ir, values

op = values.Opset("", 24)


def attention(
    q: Any,
    k: Any,
    v: Any,
    lengths: Any = None,
    starts: Any = None,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    mask: Any = None,
    sink: Any = None,
    mode: str = "linear",
    layout: str = "bhsd",
    k_scale: Any = None,
    v_scale: Any = None,
    block_tables: Any = None,
    threads: int | None = None,
) -> Any:
    result = q.dtype
    # Mixed types are computed in float32.
    wide = result if k.dtype == result else ir.DataType.FLOAT
    query = _by_head(_cast(q, result, wide), layout)
    key, value = (
        _cache(cache, scales, layout, wide, block_tables) for cache, scales in ((k, k_scale), (v, v_scale))
    )
    batch, rows, slots = _size(query, 0), _size(query, 2), _size(key, 2)
    is_long = lengths is not None or causal
    tokens = op.Expand(slots, batch) if lengths is None else _cast(lengths, lengths.dtype, ir.DataType.INT64)
    attributes: dict[str, Any] = {"softcap": softcap, "is_causal": 0}
    if scale is not None:
        attributes["scale"] = scale
    # The numbers that a mask adds have this type. It is None for booleans.
    added = None if mask is None or mask.dtype == ir.DataType.BOOL else wide
    if mask is not None:
        mask = _padded(mask, rows, slots, added)
    if window is not None or starts is not None or mode == "circular" or sink is not None:
        visible = _visible(tokens, starts, causal, window, mode, rows, slots)
        mask = _with(visible, mask, added)
        is_long = sink is None
        tokens = op.Min(tokens, slots)
    else:
        attributes["is_causal"] = int(causal)
    if sink is not None:
        column = op.Unsqueeze(_cast(sink, result, wide), _ints(1, 2))
        heads = _size(query, 1)
        if added is None:
            mask = op.Where(mask, _number(0.0, wide), _number(float("-inf"), wide))
        mask = op.Expand(mask, op.Concat(batch, heads, rows, slots, axis=0))
        column = op.Expand(column, op.Concat(batch, heads, rows, _ints(1), axis=0))
        mask = op.Concat(mask, column, axis=3)
        key, value = _with_a_zero(key, wide), _with_a_zero(value, wide)
    inputs = query, key, value, mask, None, None, tokens if is_long else None
    results: Any = op.Attention(*inputs, **attributes)
    output = results[0]
    return _by_head(_cast(output, wide, result), layout)


def _cache(cache: Any, scales: Any, layout: str, wide: Any, tables: Any) -> Any:
    """Returns keys or values ``[batch, heads, slots, size]``."""
    cache = _by_head(_cast(cache, cache.dtype, wide), layout)
    if scales is not None:
        by_row = len(scales.shape) == 3
        cache = op.Mul(cache, op.Unsqueeze(scales, _ints(-1 if by_row else 1)))
    if tables is None:
        return cache
    tables = _cast(tables, tables.dtype, ir.DataType.INT64)
    # An entry that no query needs may be any number.
    is_block = op.And(op.GreaterOrEqual(tables, _ints(0)), op.Less(tables, _size(cache, 0)))
    index = op.Where(is_block, tables, _ints(0))
    gathered = op.Transpose(op.Gather(cache, index, axis=0), perm=[0, 2, 1, 3, 4])
    shape = op.Concat(_size(index, 0), _size(cache, 1), _ints(-1), _size(cache, 3), axis=0)
    return op.Reshape(gathered, shape)


def _visible(
    tokens: Any, starts: Any, causal: bool, window: int | None, mode: str, rows: Any, slots: Any
) -> Any:
    """Returns which slots each query sees, ``[batch, 1, queries, slots]``, as `_attention_math` does."""
    zero, one = (op.Constant(value_int=value) for value in (0, 1))
    tokens = op.Unsqueeze(tokens, _ints(1, 2, 3))
    position = op.Range(zero, op.Squeeze(slots), one)
    if mode == "circular":
        last = op.Sub(tokens, one)
        position = op.Sub(last, op.Mod(op.Sub(last, position), slots))
    every = op.Unsqueeze(op.Range(zero, op.Squeeze(rows), one), _ints(1))
    query = op.Add(op.Sub(tokens, rows), every)
    seen = op.And(op.GreaterOrEqual(position, zero), op.Less(position, tokens))
    # Every query has an element, also if no rule depends on the query.
    seen = op.And(seen, op.Less(op.Sub(query, query), one))
    if causal:
        seen = op.And(seen, op.LessOrEqual(position, query))
    if window is not None:
        first = op.Sub(query, op.Constant(value_int=min(window, 1 << 62)))
        seen = op.And(seen, op.Greater(position, first))
    if starts is not None:
        starts = op.Unsqueeze(_cast(starts, starts.dtype, ir.DataType.INT64), _ints(1, 2, 3))
        seen = op.And(seen, op.GreaterOrEqual(position, starts))
    return seen


def _padded(mask: Any, rows: Any, slots: Any, added: Any) -> Any:
    """Returns a mask with an element for every query and slot. Some runtimes refuse others."""
    rank = len(mask.shape)
    if added is None:
        hidden = op.Cast(op.Constant(value_int=0), to=ir.DataType.BOOL)
    else:
        mask, hidden = _cast(mask, mask.dtype, added), _number(float("-inf"), added)
    if rank == 1:
        mask, rank = op.Unsqueeze(mask, _ints(0)), 2
    missing = op.Sub(slots, op.Shape(mask, start=rank - 1, end=rank))
    padding = op.Concat(_ints(*[0] * (2 * rank - 1)), missing, axis=0)
    shape = op.Concat(*[_ints(1)] * (rank - 2), rows, slots, axis=0)
    return op.Expand(op.Pad(mask, padding, hidden), shape)


def _with(visible: Any, mask: Any, added: Any) -> Any:
    """Returns a mask that also hides what is not visible."""
    if mask is None:
        return visible
    if added is None:
        return op.And(visible, mask)
    return op.Where(visible, mask, _number(float("-inf"), added))


def _with_a_zero(cache: Any, wide: Any) -> Any:
    """Returns a cache with one more slot, which contains zeros."""
    return op.Pad(cache, _ints(0, 0, 0, 0, 0, 0, 1, 0), _number(0.0, wide))


def _by_head(tensor: Any, layout: str) -> Any:
    return tensor if layout == "bhsd" else op.Transpose(tensor, perm=[0, 2, 1, 3])


def _cast(tensor: Any, dtype: Any, to: Any) -> Any:
    return tensor if dtype == to else op.Cast(tensor, to=to)


def _number(value: float, dtype: Any) -> Any:
    number = op.Constant(value_float=value)
    return number if dtype == ir.DataType.FLOAT else op.Cast(number, to=dtype)


def _size(tensor: Any, dimension: int) -> Any:
    return op.Shape(tensor, start=dimension, end=dimension + 1)


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=[*values])
