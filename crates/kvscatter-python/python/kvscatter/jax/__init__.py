"""The write of a KV cache inside ``jax.jit``, attention over it, and a cache for ``lax.scan`` and ``lax.while_loop``.

`tensor_scatter` is a custom call of XLA. If the past is donated, the write is in place. `attention` is another one,
which reads only the slots with tokens.

>>> import jax, jax.numpy as jnp, kvscatter.jax
>>> write = jax.jit(kvscatter.jax.tensor_scatter, donate_argnums=0)
>>> past = jnp.zeros((2, 1, 4, 1))                     # [batch, heads, capacity, head size]
>>> new = jnp.ones((2, 1, 2, 1))                       # two rows for each sample
>>> write(past, new, jnp.array([0, 2])).reshape(2, 4)
Array([[1., 1., 0., 0.],
       [0., 0., 1., 1.]], dtype=float32)
"""

from __future__ import annotations

try:
    import jax as jax
except ImportError as missing:
    raise ImportError("kvscatter.jax needs JAX: pip install kvscatter[jax]") from missing

from kvscatter.jax._attention import ATTENTION_TARGET, attention
from kvscatter.jax._cache import KvCache, KvLayer
from kvscatter.jax._scatter import tensor_scatter
from kvscatter.jax._write import TARGET

__all__ = ["ATTENTION_TARGET", "TARGET", "KvCache", "KvLayer", "attention", "tensor_scatter"]


def __dir__() -> list[str]:
    return __all__
