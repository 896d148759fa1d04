"""Writes paged caches, whose slots are in blocks that an engine gives to its samples.

The terms are those of vLLM and FlashAttention. A cache has ``num_blocks`` blocks of ``block_size`` slots, and
``block_tables`` lists the blocks of each sample: token ``t`` of a sample is in block
``block_tables[sample, t // block_size]``, at offset ``t % block_size``. ``slot_mapping`` has the slot of each new
token, ``block * block_size + offset``.

A decode step writes the keys and values of each sample's new token, and attends to all of its tokens:

>>> import kvscatter, numpy as np
>>> from kvscatter import paged
>>> keys, values = (np.zeros((4, 1, 2, 1), np.float32) for _ in range(2))  # [blocks, heads, block size, head size]
>>> block_tables = np.array([[2, 0], [3, -1]], np.int32)
>>> seq_lens = [3, 2]                                                      # with the new tokens
>>> slots = paged.slot_mapping(block_tables, seq_lens, 1, block_size=2, num_blocks=4)
>>> slots
array([0, 7])
>>> new = np.array([[[1]], [[3]]], np.float32)                             # [tokens, heads, head size]
>>> paged.write_([(keys, new), (values, new)], slots)
0
>>> q = np.ones((2, 1, 1, 1), np.float32)                                  # [samples, heads, queries, head size]
>>> kvscatter.attention(q, keys, values, seq_lens, block_tables=block_tables).ravel().round(3)
array([0.576, 2.858], dtype=float32)

This module gives no blocks to samples and takes none back. Engines check none of these numbers, so that a wrong slot
overwrites other memory or another token. Here both are errors.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvscatter._native import paged as _native
from kvscatter._typing import AttentionLayout, Indices, Integer, SupportsDLPack

__all__ = ["slot_mapping", "write_"]


def __dir__() -> list[str]:
    return __all__


def slot_mapping(
    block_tables: SupportsDLPack,
    seq_lens: Indices,
    new_tokens: Integer | Indices,
    *,
    block_size: Integer,
    num_blocks: Integer,
) -> NDArray[np.int64]:
    """Returns the slots of the new tokens of each sample, one sample after the other.

    Args:
        block_tables: The blocks of each sample, int32 or int64 ``[samples, max_blocks]``. Entries that no new token
            needs may have any value.
        seq_lens: The number of tokens of each sample, new tokens included, ``[samples]``.
        new_tokens: The number of new tokens of every sample, such as 1 in a decode step, or of each sample,
            ``[samples]``. They are the last tokens of the sample.
        block_size: The number of slots of a block.
        num_blocks: The number of blocks of the cache.

    Returns:
        A slot for each new token, ``[tokens]``.

    Raises:
        ShapeError: ``block_tables`` does not have two dimensions, or a list does not have one.
        ElementTypeError: A list or a table has other elements than integers.
        OptionError: ``block_size`` or ``num_blocks`` is out of range.
        PositionError: A list has too few or too many values, a sample has fewer tokens than new tokens or more than
            its table has slots, or a block of a new token does not exist.

    >>> import numpy as np
    >>> slot_mapping(np.array([[7, 1, 4], [5, 3, 8]]), [3, 5], [3, 1], block_size=2, num_blocks=9)
    array([14, 15,  2, 16])
    """
    return _native.slot_mapping(block_tables, seq_lens, new_tokens, block_size, num_blocks)


def write_(
    pairs: Iterable[tuple[SupportsDLPack, SupportsDLPack]],
    slot_mapping: Indices,
    *,
    layout: AttentionLayout = "bhsd",
    skip_negative: bool = False,
) -> int:
    """Writes new rows into paged caches in place: the keys and values of all layers, or none of them.

    Args:
        pairs: Tuples of a cache and its update. All have the same type, shapes and strides, which may be any for
            which no two positions of a cache share memory. Caches are ``[num_blocks, heads, block_size, size]``, and
            updates ``[tokens, heads, size]``. All types of ``tensor_scatter_`` are accepted.
        slot_mapping: The slot of each token, ``[tokens]``.
        layout: ``"bhsd"``, or ``"bshd"`` for caches ``[num_blocks, block_size, heads, size]``. ``kvscatter.attention``
            has the same layouts, and the same default.
        skip_negative: Whether a token with a negative slot is left out. vLLM gives padding the slot -1. By default, a
            negative slot is an error.

    Returns:
        The number of tokens that were left out. It is the same for every pair.

    Raises:
        ElementTypeError: An argument is not an array, two types differ, or slots are not integers.
        ShapeError: Ranks or dimensions differ, or a pair differs from the first.
        OptionError: The layout does not exist.
        PositionError: A slot does not exist, two tokens have the same slot, or there is not one slot for each token.
        ArrayError: A cache is read-only or immutable, or shares memory with itself or another argument.

    >>> import numpy as np
    >>> cache = np.zeros((3, 2, 1, 1), np.float16)
    >>> write_([(cache, np.array([[[1]], [[2]], [[3]]], np.float16))], [4, 1, -1], layout="bshd", skip_negative=True)
    1
    >>> cache.reshape(3, 2)
    array([[0., 2.],
           [0., 0.],
           [1., 0.]], dtype=float16)
    """
    return _native.write_(pairs, slot_mapping, layout, skip_negative)
