"""The rules of the three documents, applied to one row at a time, on arrays with an entry for each element.

Python's integers do not overflow, and the modulo is taken on the sequence coordinate alone.
"""

import numpy as np


def tensor_scatter(past, update, write_indices=None, lengths=None, axis=-2, mode="linear"):
    """Implements ONNX TensorScatter-24. kvscatter's ``lengths`` counts the real rows of each sample."""
    present = past.copy()
    slots, rows = np.moveaxis(present, axis, 1), np.moveaxis(update, axis, 1)
    capacity, count = slots.shape[1], rows.shape[1]
    for sample in range(past.shape[0]):
        start = 0 if write_indices is None else int(write_indices[sample])
        for row in range(count if lengths is None else int(lengths[sample])):
            slot = start + row if mode == "linear" else (start + row) % capacity
            slots[sample, slot] = rows[sample, row]
    return present


def kv_cache_update(cache, update, write_indices, update_lengths=None):
    """Implements TensorRT KVCacheUpdate.

    cache is [b, d, s_max, h]. update is [b, d, s, h], or packed [tokens, d, h].
    """
    present = cache.copy()
    for sample, start in enumerate(map(int, write_indices)):
        if update_lengths is None:
            rows = update[sample].swapaxes(0, 1)
        else:
            rows = update[int(update_lengths[sample]) : int(update_lengths[sample + 1])]
        for row, values in enumerate(rows):
            present[sample, :, start + row] = values
    return present


def kv_cache_operation(new_kv, layer_id, past, token_offset, seq_len):
    """Implements Ascend KVCacheOperation.

    past is [layers, batch, maxSeqLen, hiddenSize]. tokenOffset is the length after the write.
    """
    present = past.copy()
    tokens = iter(new_kv.reshape(-1, past.shape[3]))
    for sample, (end, length) in enumerate(zip(map(int, token_offset), map(int, seq_len), strict=True)):
        for slot in range(end - length, end):
            present[int(layer_id[0]), sample, slot] = next(tokens)
    return present
