"""MLX on the CPU: slice assignment for each sample, and mlx.core.fast.scaled_dot_product_attention."""

from importlib.metadata import version as installed

import mlx.core as mx
import numpy as np
from usual_mask import join_heads, split_heads, usual_mask

mx.set_default_device(mx.cpu)


def name():
    return "MLX"


def version():
    return installed("mlx")


def tensor_scatter(past_cache, update, write_indices, *, axis, mode, in_place):
    """Writes into an array, whose memory is MLX's."""
    starts = np.zeros(len(past_cache), np.int64) if write_indices is None else write_indices
    cache, new = tensor(past_cache), tensor(update)
    mx.eval(cache, new)
    before = address(cache)
    rows = update.shape[axis]
    for sample, start in enumerate(starts.tolist()):
        slots = slice(start, start + rows)
        if mode == "circular":
            slots = (start + mx.arange(rows)) % past_cache.shape[axis]
        place = (
            [slice(None)] * (axis - 1) + [slots] if axis > 0 else [..., slots, *[slice(None)] * (-axis - 1)]
        )
        cache[(sample, *place)] = new[sample]
    mx.eval(cache)
    same_memory = address(cache) == before
    present = array(cache, past_cache.dtype)
    if in_place and same_memory:
        past_cache[...] = present
    return {"output": present, "same_memory": same_memory}


def attention(
    q, k, v, *, mask, nonpad_kv_seqlen, is_causal, scale, q_num_heads, kv_num_heads,
    left_window_size=-1, right_window_size=-1,
):  # fmt: skip
    ndim, q = q.ndim, split_heads(q, q_num_heads)
    k, v = split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    visible = usual_mask(q, k, mask, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    made = mx.fast.scaled_dot_product_attention(
        tensor(q),
        tensor(k),
        tensor(v),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        mask=None if visible is None else tensor(visible),
    )
    return join_heads(array(made, q.dtype), ndim)


def address(values):
    """Returns the address of the elements. The view that it needs is gone afterwards."""
    if not values.size:
        return 0
    kind = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[values.itemsize]
    return np.asarray(values.view(kind)).ctypes.data


def tensor(values):
    if values.dtype.name == "bfloat16":
        return mx.array(values.view(np.uint16)).view(mx.bfloat16)
    made = mx.array(values)
    if str(made.dtype) != f"mlx.core.{values.dtype.name}":
        raise TypeError(f"MLX makes {made.dtype} of {values.dtype.name}")
    return made


def array(values, dtype):
    if dtype.name == "bfloat16":
        return np.array(values.view(mx.uint16)).view(dtype)
    return np.array(values)
