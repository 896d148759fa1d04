"""The prompt caches of mlx-lm, in tiny random models."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models import cache as caches

from kvscatter.histories import Engine, Refused

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
WINDOW = 8
GEMMA: dict[str, Any] = {
    **SIZES,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 8,
}
LFM: dict[str, Any] = {
    **SIZES,
    "norm_eps": 1e-6,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 32,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"],
}
LLAMA4: dict[str, Any] = {
    "text_config": {
        **SIZES,
        "model_type": "llama4_text",
        "num_hidden_layers": 4,
        "attention_bias": False,
        "attention_chunk_size": WINDOW,
        "interleave_moe_layer_step": 8,
        "intermediate_size_mlp": 48,
        "num_experts_per_tok": 1,
        "num_local_experts": 1,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "use_qk_norm": True,
    }
}


class Mlx(Engine):
    """A model of mlx-lm and its prompt caches.

    Variants: ``plain`` (Llama), ``rotating`` (Gemma 3, with a full layer too), ``hybrid`` (LFM2, with states
    of convolutions) and ``chunked`` (Llama 4) have a cache for each sample, as the server of mlx-lm keeps its
    prompts. In ``batch``, ``batch-rotating`` and ``batch-hybrid`` the samples are rows of one cache, as in a
    `BatchGenerator`.
    """

    variants = ("plain", "rotating", "hybrid", "chunked", "batch", "batch-rotating", "batch-hybrid")
    vocabulary = VOCABULARY
    batch = 3
    ragged = True

    def __init__(self, variant: str = "plain") -> None:
        self.name = f"mlx-lm {mlx_lm.__version__} with mlx {mx.__version__}, {variant}"
        self.is_batch = variant.startswith("batch")
        match variant:
            case "plain" | "batch":
                family, sizes = "llama", SIZES
                self.edges = (caches.KVCache.step,)
                self.longest = self.edges[0] + 8
            case "rotating" | "batch-rotating":
                family, sizes = "gemma3_text", GEMMA
                self.windows = (WINDOW,)
            case "hybrid" | "batch-hybrid":
                family, sizes = "lfm2", LFM
            case "chunked":
                family, sizes = "llama4", LLAMA4
                self.edges = (WINDOW,)
            case _:
                raise ValueError(f"variant {variant!r} is not one of {', '.join(self.variants)}")
        self.samples: list[list[Any]] = []
        self.rows: list[Any] = []
        module = importlib.import_module(f"mlx_lm.models.{family}")
        mx.set_default_device(mx.cpu)
        mx.random.seed(0)
        self.model: Any = module.Model(module.ModelArgs.from_dict({"model_type": family, **sizes}))
        # Default random weights are so small that a token hardly changes later logits.
        self.model.apply(lambda weight: weight * 3 if weight.ndim > 1 else weight)

    def start(self, samples: int) -> None:
        """Begins with new caches."""
        self.lengths = [0] * samples
        self._keep([self._new() for _ in range(samples)])

    def feed(self, rows: list[list[int]]) -> list[Any]:
        """Runs the model on each sample, or on a batch of those with new tokens."""
        fed = [sample for sample, row in enumerate(rows) if row]
        logits: list[Any] = [np.empty((0, self.vocabulary), np.float32)] * len(rows)
        if not self.is_batch:
            for sample in fed:
                logits[sample] = np.array(self.model(mx.array([rows[sample]]), cache=self.samples[sample])[0])
        elif len(fed) == len(rows):
            logits = self._run(self.rows, rows)
        else:
            waiting = [sample for sample, row in enumerate(rows) if not row]
            running = self._split(fed)
            for sample, row in zip(fed, self._run(running, [rows[sample] for sample in fed]), strict=True):
                logits[sample] = row
            self.rows = _joined(running, self._split(waiting))
            order = [*fed, *waiting]
            self.rows = _joined(*(self._split([order.index(sample)]) for sample in range(len(rows))))
        self.lengths = [length + len(row) for length, row in zip(self.lengths, rows, strict=True)]
        return logits

    def truncate(self, lengths: list[int]) -> None:
        """Trims the caches. A sample cut to 0 tokens gets a new cache."""
        drops = [length - new for length, new in zip(self.lengths, lengths, strict=True)]
        if self.is_batch and min(drops) == max(drops) and min(lengths) > 0:
            _trim(self.rows, drops[0])
        else:
            samples = [
                self._sample(sample) if length else self._new() for sample, length in enumerate(lengths)
            ]
            for sample, length in enumerate(lengths):
                if length:
                    _trim(samples[sample], drops[sample])
            self._keep(samples)
        self.lengths = list(lengths)

    def add(self) -> None:
        """Adds a new cache."""
        self._append(self._new())
        self.lengths.append(0)

    def fork(self, sample: int) -> None:
        """Adds a copy."""
        self._append(self._sample(sample))
        self.lengths.append(self.lengths[sample])

    def remove(self, sample: int) -> None:
        """Keeps the other caches."""
        if self.is_batch:
            self.rows = self._split([each for each in range(len(self.lengths)) if each != sample])
        else:
            del self.samples[sample]
        del self.lengths[sample]

    def save(self, sample: int, path: str) -> None:
        """Saves a cache. Its file needs a suffix."""
        if self.lengths[sample] == 0:
            raise Refused("a prompt cache needs a prompt")
        caches.save_prompt_cache(
            f"{path}.safetensors", self._sample(sample), {"length": str(self.lengths[sample])}
        )

    def reorder(self, parents: list[int]) -> None:
        """Copies the caches of parents."""
        if self.is_batch:
            self.rows = _joined(*(self._split([parent]) for parent in parents))
        else:
            self.samples = [self._sample(parent) for parent in parents]
        self.lengths = [self.lengths[parent] for parent in parents]

    def load(self, sample: int, path: str) -> None:
        """Loads a cache."""
        samples = [self._sample(each) for each in range(len(self.lengths))]
        samples[sample], metadata = caches.load_prompt_cache(f"{path}.safetensors", return_metadata=True)
        self.lengths[sample] = int(metadata["length"])
        self._keep(samples)

    def _new(self) -> list[Any]:
        layers: list[Any] = caches.make_prompt_cache(self.model)
        return layers

    def _keep(self, samples: list[list[Any]]) -> None:
        if self.is_batch:
            self.rows = _merged(samples)
        else:
            self.samples = samples

    def _append(self, sample: list[Any]) -> None:
        if self.is_batch:
            self.rows = _joined(self.rows, _merged([sample]))
        else:
            self.samples.append(sample)

    def _sample(self, sample: int) -> list[Any]:
        """Returns a copy of the cache of a sample."""
        if self.is_batch:
            return [layer.extract(sample) for layer in self.rows] if self.lengths[sample] else self._new()
        return copy.deepcopy(self.samples[sample])

    def _split(self, samples: list[int]) -> list[Any]:
        """Returns a copy of some rows."""
        rows = copy.deepcopy(self.rows)
        for layer in rows:
            layer.filter(samples)
        return rows

    def _run(self, layers: list[Any], rows: list[list[int]]) -> list[Any]:
        """Runs a batch, padded on the right like the prompts of a `PromptProcessingBatch`."""
        lengths = [len(row) for row in rows]
        paddings = [max(lengths) - length for length in lengths]
        for layer in layers if any(paddings) else ():
            layer.prepare(lengths=lengths, right_padding=paddings)
        tokens = [row + [0] * padding for row, padding in zip(rows, paddings, strict=True)]
        logits = np.array(self.model(mx.array(tokens), cache=layers))
        for layer in layers if any(paddings) else ():
            layer.finalize()
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]


def _trim(layers: list[Any], count: int) -> None:
    if count and not caches.can_trim_prompt_cache(layers):
        raise Refused("can_trim_prompt_cache is false")
    if caches.trim_prompt_cache(layers, count) != count:
        raise Refused("trim_prompt_cache trims less")


def _merged(samples: list[list[Any]]) -> list[Any]:
    return [layers[0].merge(list(layers)) for layers in zip(*samples, strict=True)]


def _joined(first: list[Any], *others: list[Any]) -> list[Any]:
    for other in others:
        for layer, more in zip(first, other, strict=True):
            layer.extend(more)
    return first
