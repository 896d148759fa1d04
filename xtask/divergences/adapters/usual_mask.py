"""The mask that a program makes for a static cache before it calls a library's attention."""

import numpy as np


def usual_mask(q, k, mask, nonpad_kv_seqlen, is_causal, left=-1, right=-1):
    """Returns a mask of shape [batch or 1, heads or 1, queries, slots], or None if every query sees every slot.

    It is boolean, True where a query sees a slot, or numbers that are added to the scores. A query at row i is the
    token at position nonpad_kv_seqlen - queries + i, or at position i without lengths. It sees `left` earlier and
    `right` later slots, or all for -1.
    """
    queries, slots = q.shape[2], k.shape[2]
    visible = np.ones((len(q), 1, queries, slots), bool)
    first = np.zeros(len(q), int) if nonpad_kv_seqlen is None else nonpad_kv_seqlen - queries
    if nonpad_kv_seqlen is not None:
        visible &= np.arange(slots) < nonpad_kv_seqlen[:, None, None, None]
    distance = np.arange(slots) - (first[:, None, None, None] + np.arange(queries)[:, None])
    if is_causal:
        visible &= distance <= 0
    if left >= 0:
        visible &= distance >= -left
    if right >= 0:
        visible &= distance <= right
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        if mask.shape[-1] < slots:
            # ONNX pads a short mask with slots that no query sees.
            fill = False if mask.dtype == bool else -np.inf
            mask = np.pad(mask, [(0, 0)] * 3 + [(0, slots - mask.shape[-1])], constant_values=fill)
        if mask.dtype == bool:
            visible = visible & mask
        else:
            return mask if visible.all() else np.where(visible, mask, np.array(-np.inf, mask.dtype))
    return None if visible.all() else visible


def split_heads(array, heads):
    """Returns [batch, heads, rows, size] of [batch, rows, heads * size]."""
    if array.ndim == 4:
        return array
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(array, ndim):
    """Reverses split_heads if the queries had 3 dimensions."""
    return array if ndim == 4 else array.swapaxes(1, 2).reshape(len(array), array.shape[2], -1)
