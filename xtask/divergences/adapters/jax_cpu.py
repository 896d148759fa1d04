"""JAX on the CPU: dynamic_update_slice of each sample under vmap, and jax.nn.dot_product_attention."""

import os
from functools import partial

# Without this, JAX makes 32-bit numbers of all 64-bit ones.
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from usual_mask import join_heads, split_heads, usual_mask


def name():
    return "JAX"


def version():
    return jax.__version__


def tensor_scatter(past_cache, update, write_indices, *, axis, mode, in_place):
    """Writes with donation if it is in place. The donated memory is JAX's."""
    starts = np.zeros(len(past_cache), np.int64) if write_indices is None else write_indices
    cache = jnp.array(past_cache)
    before = cache.unsafe_buffer_pointer()
    # Without the batch, a positive axis is one less.
    step = partial(circular if mode == "circular" else linear, axis=axis - 1 if axis > 0 else axis)
    donated = 0 if in_place else ()
    present = jax.jit(jax.vmap(step), donate_argnums=donated)(cache, jnp.array(update), jnp.array(starts))
    same_memory = present.unsafe_buffer_pointer() == before
    if in_place and same_memory:
        past_cache[...] = np.asarray(present)
    return {"output": np.asarray(present), "same_memory": same_memory}


def linear(cache, update, start, axis):
    return jax.lax.dynamic_update_slice_in_dim(cache, update, start, axis)


def circular(cache, update, start, axis):
    slots = (start + jnp.arange(update.shape[axis])) % cache.shape[axis]
    return jnp.moveaxis(jnp.moveaxis(cache, axis, 0).at[slots].set(jnp.moveaxis(update, axis, 0)), 0, axis)


def attention(
    q, k, v, *, mask, nonpad_kv_seqlen, is_causal, scale, q_num_heads, kv_num_heads,
    left_window_size=-1, right_window_size=-1,
):  # fmt: skip
    """Uses the library's own lengths and windows where it can express the call, and the usual mask elsewhere."""
    ndim, q = q.ndim, split_heads(q, q_num_heads)
    k, v = split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    window = (left_window_size, right_window_size)
    options = {"scale": q.shape[-1] ** -0.5 if scale is None else scale}
    if mask is None and nonpad_kv_seqlen is not None and not is_causal and window == (-1, -1):
        options["key_value_seq_lengths"] = jnp.array(nonpad_kv_seqlen, jnp.int32)
    elif mask is None and nonpad_kv_seqlen is None and -1 not in window:
        options |= {"local_window_size": window, "is_causal": bool(is_causal)}
    else:
        # is_causal of the library counts queries from slot 0, also with lengths.
        visible = usual_mask(q, k, mask, nonpad_kv_seqlen, is_causal, *window)
        if visible is not None:
            options["mask" if visible.dtype == bool else "bias"] = jnp.array(visible)
    # The library wants one head size for keys and values. Zeros change no product.
    size = max(q.shape[-1], v.shape[-1])
    widened = (np.pad(each, [(0, 0)] * 3 + [(0, size - each.shape[-1])]) for each in (q, k, v))
    made = jax.nn.dot_product_attention(*(jnp.array(each.swapaxes(1, 2)) for each in widened), **options)
    return join_heads(np.asarray(made)[..., : v.shape[-1]].swapaxes(1, 2), ndim)
