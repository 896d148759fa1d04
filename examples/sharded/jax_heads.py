"""Decodes one model on several devices that share its heads, with `kvscatter.jax` and the partitioner of XLA.

python jax_heads.py

The devices are simulated on the CPU. Each has some heads of every layer and writes their keys and values into its
part of the caches. The tokens are compared with those of one device, and the communication in the compiled
programs is counted.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from kvscatter.jax import KvCache

DEVICES = (1, 2, 4)
PROMPTS = [[11, 42, 7, 99, 23, 64], [5, 17]]
NEW_TOKENS, CAPACITY = 24, 32
VOCABULARY, HEADS, KV_HEADS, HEAD_SIZE = 128, 8, 4, 16
HIDDEN, MLP_SIZE = HEADS * HEAD_SIZE, 256
WINDOWS = [None, 6, None, 6]  # every second layer sees only the last tokens, which a ring keeps
CHUNK = max(len(prompt) for prompt in PROMPTS)

# The shape of each weight of a layer, and how it is sharded. Weights that are sharded by their outputs need no
# communication. Those that are sharded by their inputs need an all-reduce, which XLA adds.
WEIGHTS = {
    "query": ((HIDDEN, HEADS, HEAD_SIZE), P(None, "heads")),
    "key": ((HIDDEN, KV_HEADS, HEAD_SIZE), P(None, "heads")),
    "value": ((HIDDEN, KV_HEADS, HEAD_SIZE), P(None, "heads")),
    "out": ((HEADS, HEAD_SIZE, HIDDEN), P("heads")),
    "up": ((HIDDEN, MLP_SIZE), P(None, "heads")),
    "down": ((MLP_SIZE, HIDDEN), P("heads")),
}
CACHE = P(None, None, "heads")  # [batch, slots, heads, head size]
COMMUNICATION = re.compile(
    r"= \S+ (?:all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\S*\("
)


def rms_norm(hidden: jax.Array) -> jax.Array:
    return hidden * jax.lax.rsqrt(jnp.square(hidden).mean(-1, keepdims=True) + 1e-6)


def rotary(heads: jax.Array, positions: jax.Array) -> jax.Array:
    """Turns each pair of numbers by an angle that grows with the position."""
    first, second = jnp.split(heads, 2, axis=-1)
    angles = positions[:, :, None, None] / 10_000.0 ** (jnp.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


def step(weights: Any, cache: KvCache, tokens: jax.Array, real: jax.Array) -> tuple[KvCache, jax.Array]:
    """Feeds the next tokens of each sample, ``real`` of which are not padding. Returns the likeliest next tokens."""
    rows = tokens.shape[1]
    positions = cache.lengths[:, None] + jnp.arange(rows)
    hidden = weights["embedding"][tokens]
    for index, layer in enumerate(weights["layers"]):
        query, key, value = (
            jnp.einsum("brh,hnd->brnd", rms_norm(hidden), layer[name]) for name in ("query", "key", "value")
        )
        cache = cache.write(index, rotary(key, positions), value, real=real)
        stored, mask = cache.layers[index], cache.visible(index, rows)
        attended = jax.nn.dot_product_attention(
            rotary(query, positions), stored.keys, stored.values, mask=mask
        )
        hidden = hidden + jnp.einsum("brnd,ndh->brh", attended, layer["out"])
        hidden = hidden + jax.nn.silu(rms_norm(hidden) @ layer["up"]) @ layer["down"]
    last = jnp.take_along_axis(hidden, (real - 1)[:, None, None], axis=1)[:, 0]
    return cache.advance(real), (last @ weights["output"]).argmax(-1)


def decode(weights: Any, cache: KvCache, token: jax.Array) -> jax.Array:
    def one(carry: tuple[KvCache, jax.Array], _: None) -> tuple[tuple[KvCache, jax.Array], jax.Array]:
        cache, token = carry
        return step(weights, cache, token[:, None], jnp.ones_like(token)), token

    return jax.lax.scan(one, (cache, token), None, NEW_TOKENS)[1].T


def count(compiled: Any) -> int:
    """Returns how often a compiled program communicates."""
    return len(COMMUNICATION.findall(compiled.as_text()))


def run(devices: list[Any]) -> tuple[list[list[int]], int, int]:
    """Returns the new tokens of each prompt, and how often a step and all of its writes communicate."""
    mesh = jax.make_mesh(
        (len(devices),), ("heads",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,)
    )

    def place(array: jax.Array, spec: P) -> jax.Array:
        return jax.device_put(array, NamedSharding(mesh, spec))

    keys = iter(jax.random.split(jax.random.key(1), 2 + len(WINDOWS) * len(WEIGHTS)))
    weights = {
        "embedding": place(jax.random.normal(next(keys), (VOCABULARY, HIDDEN)), P()),
        "output": place(jax.random.normal(next(keys), (HIDDEN, VOCABULARY)), P()),
        "layers": [
            {
                name: place(jax.random.normal(next(keys), shape) / HIDDEN**0.5, spec)
                for name, (shape, spec) in WEIGHTS.items()
            }
            for _ in WINDOWS
        ],
    }
    cache = KvCache.zeros(
        WINDOWS, batch=len(PROMPTS), capacity=CAPACITY, heads=KV_HEADS, head_size=HEAD_SIZE, chunk=CHUNK
    )
    cache = jax.tree.map(lambda array: place(array, CACHE if array.ndim == 4 else P()), cache)
    padded = jnp.array([prompt + [0] * (CHUNK - len(prompt)) for prompt in PROMPTS])
    lengths = jnp.array([len(prompt) for prompt in PROMPTS])
    cache, token = jax.jit(step, donate_argnums=1)(weights, cache, padded, lengths)
    tokens = jax.jit(decode)(weights, cache, token)

    def writes(cache: KvCache, rows: jax.Array) -> KvCache:
        for layer in range(len(WINDOWS)):
            cache = cache.write(layer, rows, rows)
        return cache

    rows = place(jnp.zeros((len(PROMPTS), 1, KV_HEADS, HEAD_SIZE)), CACHE)
    in_writes = count(jax.jit(writes, donate_argnums=0).lower(cache, rows).compile())
    in_all = count(jax.jit(step).lower(weights, cache, token[:, None], jnp.ones_like(token)).compile())
    return np.asarray(tokens).tolist(), in_all, in_writes


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    results = {devices: run(jax.devices()[:devices]) for devices in DEVICES}
    alone = results[1][0]
    for prompt, tokens in zip(PROMPTS, alone, strict=True):
        print(*prompt, "→", *tokens)
    print("\ndevices  heads of each  communication of a step  in writes  tokens")
    for devices, (tokens, in_all, in_writes) in results.items():
        same = "the same" if tokens == alone else "WRONG"
        print(f"{devices:<7}  {KV_HEADS // devices:<13}  {in_all:<23}  {in_writes:<9}  {same}")
    if any(tokens != alone or in_writes > 0 for tokens, _, in_writes in results.values()):
        raise SystemExit("the devices do not decode as one does")


if __name__ == "__main__":
    main()
