"""The caches of Hugging Face transformers, in tiny random models."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
import transformers

from kvscatter.histories import Engine, Refused

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
WINDOW = 8


class Transformers(Engine):
    """A model of transformers and its cache.

    Variants: ``dynamic``, ``static``, ``sliding`` (Mistral), ``sliding-static`` (Gemma 3, with full layers too),
    ``hybrid`` (LFM2, with states of convolutions) and ``recurrent`` (Qwen3-Next, with recurrent states too). A draft
    calls ``activate_past_recording``, where there is one. In ``padded``, rows of different lengths are padded, and the
    mask hides the padding also in later steps.
    """

    variants = ("dynamic", "padded", "static", "sliding", "sliding-static", "hybrid", "recurrent")
    vocabulary = VOCABULARY
    batch = 3

    def __init__(self, variant: str = "dynamic") -> None:
        self.name = f"transformers {transformers.__version__}, {variant}"
        self.is_static = variant.endswith("static")
        config: Any
        match variant:
            case "dynamic" | "padded" | "static":
                config = transformers.LlamaConfig(**SIZES)
            case "sliding":
                config = transformers.MistralConfig(**SIZES, sliding_window=WINDOW)
            case "sliding-static":
                kinds = ["sliding_attention", "full_attention"]
                config = transformers.Gemma3TextConfig(
                    **SIZES, head_dim=8, sliding_window=WINDOW, layer_types=kinds, query_pre_attn_scalar=8
                )
            case "hybrid":
                config = transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"])
            case "recurrent":
                heads = dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads"), 2)
                heads |= dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8)
                kinds = ["linear_attention", "full_attention"]
                config = transformers.Qwen3NextConfig(
                    **SIZES, **heads, layer_types=kinds, mlp_only_layers=[0, 1]
                )
            case _:
                raise ValueError(f"variant {variant!r} is not one of {', '.join(self.variants)}")
        self.windows = (WINDOW,) if "sliding" in variant else ()
        self.capacity = 32 if self.is_static else None
        # Static layers lack the methods for these operations.
        if self.is_static:
            self.lacks = ("truncate", "accept", "fork", "remove")
        elif variant == "padded":
            self.lacks = ("truncate", "accept")
            self.ragged, self.paddings = True, ("left", "right")
        elif not self.windows and variant != "dynamic":
            is_old = variant == "recurrent" and transformers.__version__.startswith("4.")
            self.lacks = ("fork", "remove", *(("truncate", "accept") if is_old else ()))
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        torch.set_num_threads(1)
        # Default random weights are so small that a token hardly changes later logits.
        config.initializer_range = 0.2
        self.makes_own_cache = variant in ("hybrid", "recurrent") and transformers.__version__.startswith(
            "4."
        )
        self.model: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
        # The name since transformers 5.24.
        self.argument = (
            "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        )

    def start(self, samples: int) -> None:
        """Begins with a new cache."""
        self.samples = samples
        self.length = 0
        self.mask = torch.zeros(samples, 0, dtype=torch.int64)
        if self.is_static:
            self.cache: Any = transformers.StaticCache(config=self.model.config, max_cache_len=self.capacity)
        elif self.makes_own_cache:
            # The oldest versions have a class of caches for each hybrid model, and the model makes it.
            self.cache = None
        else:
            self.cache = transformers.DynamicCache(config=self.model.config)

    def feed(self, rows: list[list[int]], padding: str = "") -> list[Any]:
        """Runs the model."""
        if padding:
            return self._feed_padded(rows, padding)
        count = len(rows[0])
        if self.capacity is not None and self.length + count > self.capacity:
            raise Refused(
                f"{self.length + count} tokens in {self.capacity} slots; StaticCache does not check this"
            )
        with torch.no_grad():
            output = self.model(torch.tensor(rows), **{self.argument: self.cache}, use_cache=True)
        self.cache = output[self.argument]
        self.length += count
        return list(output.logits.numpy())

    def _feed_padded(self, rows: list[list[int]], side: str) -> list[Any]:
        """Runs the model on rows with padding on one side. Positions do not count padding."""
        width = max(len(row) for row in rows)
        places = [slice(width - len(row), width) if side == "left" else slice(len(row)) for row in rows]
        tokens, new = torch.zeros(2, len(rows), width, dtype=torch.int64)
        for sample, (row, place) in enumerate(zip(rows, places, strict=True)):
            tokens[sample, place], new[sample, place] = torch.tensor(row, dtype=torch.int64), 1
        self.mask = torch.cat([self.mask, new], 1)
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        with torch.no_grad():
            output = self.model(
                tokens, attention_mask=self.mask, position_ids=positions, **{self.argument: self.cache}
            )
        self.length += width
        return [logits[place] for logits, place in zip(output.logits.numpy(), places, strict=True)]

    def truncate(self, lengths: list[int]) -> None:
        """Crops the cache. A number below 0 removes tokens in all versions."""
        if lengths[0] == 0:
            self.start(self.samples)
        elif lengths[0] < self.length:
            try:
                self.cache.crop(lengths[0] - self.length)
            except (RuntimeError, ValueError) as error:
                raise Refused(str(error)) from error
            self.length = lengths[0]

    def begin(self) -> None:
        """Records the past, if this version can."""
        if self.length == 0:
            raise Refused("a draft needs a prompt")
        self.begun = self.length
        self.records = hasattr(self.cache, "activate_past_recording")
        if self.records:
            self.cache.activate_past_recording()

    def accept(self, counts: list[int]) -> None:
        """Crops the other tokens. A cache that records must be cropped even by 0 tokens."""
        dropped = self.length - self.begun - counts[0]
        if dropped or self.records:
            try:
                self.cache.crop(-dropped)
            except (RuntimeError, ValueError) as error:
                raise Refused(str(error)) from error
        self.length -= dropped

    def reorder(self, parents: list[int]) -> None:
        """Selects beams."""
        if self.length:
            self.cache.reorder_cache(torch.tensor(parents))
        self.mask = self.mask[parents]

    def fork(self, sample: int) -> None:
        """Repeats a sample."""
        self._select([*range(self.samples), sample])

    def remove(self, sample: int) -> None:
        """Selects the other samples."""
        self._select([each for each in range(self.samples) if each != sample])

    def _select(self, samples: list[int]) -> None:
        self.cache.batch_select_indices(torch.tensor(samples))
        self.mask = self.mask[samples]
        self.samples = len(samples)
