"""A KV cache as a pytree, with linear layers and rings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from kvscatter import _integers, errors, ring
from kvscatter._typing import Mode
from kvscatter.jax._scatter import tensor_scatter


@partial(jax.tree_util.register_dataclass, data_fields=["keys", "values"], meta_fields=["window", "is_ring"])
@dataclass(frozen=True)
class KvLayer:
    """The keys and values of one layer, ``[batch, slots, heads, head size]``, as ``jax.nn.dot_product_attention``
    takes them."""

    keys: jax.Array
    values: jax.Array
    window: int | None
    """The number of tokens that a query sees, including its own. None if it sees all of them."""
    is_ring: bool
    """Whether position ``p`` is in slot ``p`` modulo the number of slots."""

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.keys.shape[1]


@partial(jax.tree_util.register_dataclass, data_fields=["layers", "lengths"], meta_fields=[])
@dataclass(frozen=True)
class KvCache:
    """The keys and values of a decoder, for compiled loops.

    A step writes each layer, and then advances the lengths:

    >>> import jax.numpy as jnp
    >>> from kvscatter.jax import KvCache
    >>> cache = KvCache.zeros([None, 3], batch=1, capacity=8, heads=1, head_size=1, chunk=2)
    >>> [(layer.slots, layer.is_ring) for layer in cache.layers]
    [(8, False), (4, True)]
    >>> rows = jnp.ones((1, 2, 1, 1))                  # [batch, rows, heads, head size]
    >>> for layer in range(len(cache.layers)):
    ...     cache = cache.write(layer, rows, rows)
    >>> cache.visible(1, rows=2)[0, 0].astype(int)     # what each new token sees of each slot
    Array([[1, 0, 0, 0],
           [1, 1, 0, 0]], dtype=int32)
    >>> cache.advance(2).lengths
    Array([2], dtype=int32)

    A method returns a new cache. In a compiled function that donates the cache, or in a loop that carries it, the
    new cache has the memory of the old one.
    """

    layers: tuple[KvLayer, ...]
    lengths: jax.Array
    """The number of tokens of each sample, int32 ``[batch]``."""

    @classmethod
    def zeros(
        cls,
        windows: Sequence[int | None],
        *,
        batch: int,
        capacity: int,
        heads: int,
        head_size: int,
        dtype: DTypeLike = jnp.float32,
        chunk: int = 1,
    ) -> KvCache:
        """Returns an empty cache.

        Args:
            windows: For each layer, the number of tokens that a query sees, including its own. None if it sees
                all. A layer with a window is a ring if the ring needs fewer slots than ``capacity``.
            batch: The number of samples.
            capacity: The number of slots of linear layers: the largest number of tokens of a sample, with the
                padding of its last step. Rings have no limit.
            heads: The number of heads of keys and values.
            head_size: The size of each head.
            dtype: The type of keys and values.
            chunk: The largest number of rows that one step writes.

        Raises:
            OptionError: A window or a number is less than 1.
        """
        given = {"batch": batch, "capacity": capacity, "heads": heads, "head_size": head_size, "chunk": chunk}
        for argument, value in [*given.items(), *(("windows", it) for it in windows if it is not None)]:
            _integers.within(argument, value, 1, 2**31 - 1)
        layers = []
        for window in windows:
            slots = capacity if window is None else min(capacity, ring.least_capacity(window, chunk))
            shape = batch, slots, heads, head_size
            layers.append(KvLayer(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), window, slots < capacity))
        return cls(tuple(layers), jnp.zeros(batch, jnp.int32))

    def write(
        self, layer: int, keys: ArrayLike, values: ArrayLike, *, real: ArrayLike | None = None
    ) -> KvCache:
        """Returns the cache with new keys and values of a layer, ``[batch, rows, heads, head size]``.

        They get the positions from `lengths` on, which `advance` moves when all layers are written. ``real`` is
        the number of rows of each sample that are not padding, ``[batch]``. Without it, padding is written too,
        and needs room. A sample that has ended has 0 real rows.

        Raises:
            ShapeError: Keys and values differ in shape.
            OptionError: The layer is a ring, and after so many rows its queries would not see their windows.
            Error: For the reasons of ``kvscatter.jax.tensor_scatter``.
        """
        old = self.layers[layer]
        if jnp.shape(keys) != jnp.shape(values):
            message = (
                f"keys are {jnp.shape(keys)}, but values are {jnp.shape(values)}: both must have one shape"
            )
            raise errors.ShapeError(message, "dimension_mismatch", "values")
        rows = jnp.shape(keys)[1] if jnp.ndim(keys) > 1 else 0
        mode: Mode = "circular" if old.is_ring else "linear"
        if old.is_ring and rows > (most := ring.most_rows(old.slots, old.window or 1, old.slots, old.slots)):
            message = (
                f"keys have {rows} rows: the ring of layer {layer}, of {old.slots} slots for a window of "
                f"{old.window}, takes at most {most} in a step"
            )
            raise errors.OptionError(message, "ring_step", "keys")
        new = [
            tensor_scatter(past, update, self.lengths, axis=1, mode=mode, lengths=real)
            for past, update in ((old.keys, keys), (old.values, values))
        ]
        layers = list(self.layers)
        layers[layer] = replace(old, keys=new[0], values=new[1])
        return replace(self, layers=tuple(layers))

    def visible(self, layer: int, rows: int) -> jax.Array:
        """Returns which slots each of the new tokens sees, bool ``[batch, 1, rows, slots]``, after `write` and
        before `advance`. It is the ``mask`` of ``jax.nn.dot_product_attention``."""
        of = self.layers[layer]
        positions = (self.lengths[:, None] + jnp.arange(rows))[:, None, :, None]
        slots = jnp.arange(of.slots)
        ages = (positions - slots) % of.slots if of.is_ring else positions - slots
        # A slot of a ring contains no token that is older than the first one.
        oldest = positions if of.window is None else jnp.minimum(positions, of.window - 1)
        return (ages >= 0) & (ages <= oldest)

    def advance(self, rows: ArrayLike) -> KvCache:
        """Returns the cache after a step of ``rows`` tokens for each sample: a number, or integers ``[batch]``.
        Rows beyond that were padding, which the next step overwrites."""
        return replace(self, lengths=self.lengths + jnp.asarray(rows, jnp.int32))
