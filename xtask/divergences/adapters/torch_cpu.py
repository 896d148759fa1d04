"""PyTorch on the CPU: index_copy_ for each sample, and scaled_dot_product_attention with a mask."""

import torch
from usual_mask import join_heads, split_heads, usual_mask

# The types that NumPy lacks, by their names in ml_dtypes.
TYPES = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}


def name():
    return "PyTorch"


def version():
    return torch.__version__


def tensor_scatter(past_cache, update, write_indices, *, axis, mode):
    cache, new = tensor(past_cache), tensor(update)
    starts = torch.zeros(len(cache), dtype=torch.int64) if write_indices is None else tensor(write_indices)
    rows = torch.arange(new.shape[axis])
    for sample, start in enumerate(starts):
        slots = (start + rows) % cache.shape[axis] if mode == "circular" else start + rows
        # Without the batch, a positive axis is one less.
        cache[sample].index_copy_(axis - 1 if axis > 0 else axis, slots, new[sample])
    return array(cache, past_cache.dtype)


def attention(
    q, k, v, *, mask, nonpad_kv_seqlen, is_causal, scale, q_num_heads, kv_num_heads,
    left_window_size=-1, right_window_size=-1,
):  # fmt: skip
    ndim, q = q.ndim, split_heads(q, q_num_heads)
    k, v = split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    visible = usual_mask(q, k, mask, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    made = torch.nn.functional.scaled_dot_product_attention(
        tensor(q),
        tensor(k),
        tensor(v),
        attn_mask=None if visible is None else tensor(visible),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return join_heads(array(made, q.dtype), ndim)


def tensor(values):
    """Returns a tensor over the memory of an array."""
    if values.dtype.name in TYPES:
        return torch.from_numpy(values.view(f"u{values.itemsize}")).view(TYPES[values.dtype.name])
    return torch.from_numpy(values)


def array(values, dtype):
    """Returns an array over the memory of a tensor."""
    if dtype.name in TYPES:
        return values.contiguous().view({1: torch.uint8, 2: torch.int16}[dtype.itemsize]).numpy().view(dtype)
    return values.numpy()
