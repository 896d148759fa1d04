"""A decoder in JAX whose cache is written with ``dynamic_update_slice``."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvscatter.histories import Engine, Refused

WIDTH, VOCABULARY, SLOTS = 16, 64, 16


@partial(jax.jit, donate_argnums=(1, 2))
def step(weights: Any, keys: Any, values: Any, tokens: Any, start: Any) -> Any:
    """Returns the logits of some tokens, and the caches ``[samples, slots, width]`` with their rows."""
    x = weights["embed"][tokens]
    keys = jax.lax.dynamic_update_slice(keys, x @ weights["key"], (0, start, 0))
    values = jax.lax.dynamic_update_slice(values, x @ weights["value"], (0, start, 0))
    positions = start + jnp.arange(tokens.shape[1])
    ages = positions[:, None] - jnp.arange(keys.shape[1])
    scores = jnp.einsum("bqd,bkd->bqk", x @ weights["query"], keys) - ages / 4
    seen = jax.nn.softmax(jnp.where(ages >= 0, scores, -jnp.inf))
    return (x + jnp.einsum("bqk,bkd->bqd", seen, values)) @ weights["out"], keys, values


class Jax(Engine):
    """A layer of attention.

    Variants: ``checked`` refuses tokens for which there is no room. ``unchecked`` does not, and JAX then moves the
    write to the last slots.
    """

    variants = ("checked", "unchecked")
    vocabulary = VOCABULARY
    capacity = SLOTS
    batch = 3
    # More rows than slots.
    refusals = (TypeError,)

    def __init__(self, variant: str = "checked") -> None:
        self.name = f"JAX {jax.__version__}, {variant}"
        self.checks = variant == "checked"
        shapes = {"embed": (VOCABULARY, WIDTH), "out": (WIDTH, VOCABULARY)}
        shapes |= dict.fromkeys(("key", "value", "query"), (WIDTH, WIDTH))
        random = np.random.default_rng(0)
        self.weights = {name: jnp.array(random.normal(size=shape) / 3) for name, shape in shapes.items()}

    def start(self, samples: int) -> None:
        """Makes caches of zeros."""
        self.length = 0
        self.keys, self.values = (jnp.zeros((samples, SLOTS, WIDTH)) for _ in range(2))

    def feed(self, rows: list[list[int]]) -> list[Any]:
        """Runs the model."""
        count = len(rows[0])
        if self.checks and self.length + count > SLOTS:
            raise Refused(f"{self.length + count} tokens in {SLOTS} slots")
        logits, self.keys, self.values = step(
            self.weights, self.keys, self.values, jnp.array(rows), self.length
        )
        self.length += count
        return list(np.asarray(logits))

    def truncate(self, lengths: list[int]) -> None:
        """Goes back. The mask hides the rows that remain."""
        self.length = lengths[0]

    def reorder(self, parents: list[int]) -> None:
        """Selects samples."""
        self.keys, self.values = self.keys[jnp.array(parents)], self.values[jnp.array(parents)]

    def fork(self, sample: int) -> None:
        """Appends a copy of a sample."""
        self.reorder([*range(len(self.keys)), sample])

    def remove(self, sample: int) -> None:
        """Selects the other samples."""
        self.reorder([each for each in range(len(self.keys)) if each != sample])
