"""Decodes one model on several devices that share its heads, with `kvscatter.jax` and the partitioner of XLA.

python jax_heads.py

The devices are simulated on the CPU. Each has some heads of every layer and writes their keys and values into its
part of the caches. The tokens are compared with those of one device without caches, and the communication in the
compiled programs is counted.
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


def step(
    weights: Any, cache: KvCache | None, tokens: jax.Array, real: jax.Array
) -> tuple[KvCache | None, jax.Array]:
    """Feeds the next tokens of each sample, ``real`` of which are not padding. Without a cache, these are all
    tokens of the samples. Returns the likeliest next tokens."""
    rows = tokens.shape[1]
    positions = jnp.arange(rows) + (0 if cache is None else cache.lengths[:, None])
    positions = jnp.broadcast_to(positions, tokens.shape)
    hidden = weights["embedding"][tokens]
    for index, layer in enumerate(weights["layers"]):
        query, key, value = (
            jnp.einsum("brh,hnd->brnd", rms_norm(hidden), layer[name]) for name in ("query", "key", "value")
        )
        key = rotary(key, positions)
        if cache is None:
            ages = jnp.arange(rows)[:, None] - jnp.arange(rows)
            mask = ((ages >= 0) & (ages < (WINDOWS[index] or rows)))[None, None]
        else:
            cache = cache.write(index, key, value, real=real)
            key, value = cache.layers[index].keys, cache.layers[index].values
            mask = cache.visible(index, rows)
        attended = jax.nn.dot_product_attention(rotary(query, positions), key, value, mask=mask)
        hidden = hidden + jnp.einsum("brnd,ndh->brh", attended, layer["out"])
        hidden = hidden + jax.nn.silu(rms_norm(hidden) @ layer["up"]) @ layer["down"]
    last = jnp.take_along_axis(hidden, (real - 1)[:, None, None], axis=1)[:, 0]
    if cache is not None:
        cache = cache.advance(real)
    return cache, (last @ weights["output"]).argmax(-1)


def decode(weights: Any, cache: KvCache, token: jax.Array) -> jax.Array:
    def one(carry: tuple[KvCache, jax.Array], _: None) -> tuple[tuple[KvCache, jax.Array], jax.Array]:
        cache, token = carry
        return step(weights, cache, token[:, None], jnp.ones_like(token)), token

    return jax.lax.scan(one, (cache, token), None, NEW_TOKENS)[1].T


def make_weights() -> dict[str, Any]:
    keys = iter(jax.random.split(jax.random.key(1), 2 + len(WINDOWS) * len(WEIGHTS)))
    return {
        "embedding": jax.random.normal(next(keys), (VOCABULARY, HIDDEN)),
        "output": jax.random.normal(next(keys), (HIDDEN, VOCABULARY)),
        "layers": [
            {name: jax.random.normal(next(keys), shape) / HIDDEN**0.5 for name, (shape, _) in WEIGHTS.items()}
            for _ in WINDOWS
        ],
    }


def padded(sequences: list[list[int]], rows: int) -> tuple[jax.Array, jax.Array]:
    """Returns tokens that are padded on the right, and the number of those that are not padding."""
    tokens = [sequence + [0] * (rows - len(sequence)) for sequence in sequences]
    return jnp.array(tokens), jnp.array([len(sequence) for sequence in sequences])


def decode_without_caches(weights: Any) -> list[list[int]]:
    """Returns the new tokens of each prompt. Every step computes all tokens again."""
    sequences = [list(prompt) for prompt in PROMPTS]
    forward = jax.jit(lambda tokens, real: step(weights, None, tokens, real)[1])
    for _ in range(NEW_TOKENS):
        for sequence, token in zip(sequences, forward(*padded(sequences, CAPACITY)), strict=True):
            sequence.append(int(token))
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, PROMPTS, strict=True)]


def count(compiled: Any) -> int:
    """Returns how often a compiled program communicates."""
    return len(COMMUNICATION.findall(compiled.as_text()))


def run(weights: Any, devices: list[Any]) -> tuple[list[list[int]], int, int]:
    """Returns the new tokens of each prompt, and how often a step and all of its writes communicate."""
    mesh = jax.make_mesh(
        (len(devices),), ("heads",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,)
    )

    def place(array: jax.Array, spec: P) -> jax.Array:
        return jax.device_put(array, NamedSharding(mesh, spec))

    weights = {
        "embedding": place(weights["embedding"], P()),
        "output": place(weights["output"], P()),
        "layers": [
            {name: place(array, WEIGHTS[name][1]) for name, array in layer.items()}
            for layer in weights["layers"]
        ],
    }
    cache = KvCache.zeros(
        WINDOWS, batch=len(PROMPTS), capacity=CAPACITY, heads=KV_HEADS, head_size=HEAD_SIZE, chunk=CHUNK
    )
    cache = jax.tree.map(lambda array: place(array, CACHE if array.ndim == 4 else P()), cache)
    cache, token = jax.jit(step, donate_argnums=1)(weights, cache, *padded(PROMPTS, CHUNK))
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
    weights = make_weights()
    expected = decode_without_caches(weights)
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        print(*prompt, "→", *tokens)
    results = {devices: run(weights, jax.devices()[:devices]) for devices in DEVICES}
    print("\ndevices  heads of each  communication of a step  in writes  tokens")
    for devices, (tokens, in_all, in_writes) in results.items():
        verdict = "correct" if tokens == expected else "WRONG"
        print(f"{devices:<7}  {KV_HEADS // devices:<13}  {in_all:<23}  {in_writes:<9}  {verdict}")
    if any(tokens != expected or in_writes > 0 for tokens, _, in_writes in results.values()):
        raise SystemExit("the devices do not decode as one device without caches does")


if __name__ == "__main__":
    main()
