"""The data that a session returns."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """The memory of one cache.

    Attributes:
        past: The name of the model's input.
        dtype: The element type, by its NumPy name.
        shape: The dimensions.
        layer: The number of the layer.
        bytes: The size.
    """

    past: str
    dtype: str
    shape: tuple[int, ...]
    layer: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of a session's caches, in bytes.

    Attributes:
        caches: All caches, in the order of the model's inputs.
        layers: The bytes of each layer's caches.
        per_token: The bytes of one token of one sample, in all caches. In a ring, later tokens take the place
            of earlier ones.
        rings: The number of caches that are rings.
        states: The bytes of all states, such as those of convolutions. A session has them twice.
        undo: The bytes allocated for copies of rows and states, with which samples go back.
        encoder: The bytes of what an encoder has computed, or 0 before the first text.
        total: The bytes of all caches.
    """

    caches: tuple[CacheMemory, ...]
    layers: tuple[int, ...]
    per_token: int
    rings: int
    states: int
    undo: int
    encoder: int
    total: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The generated tokens, and the cost of generating them.

    Attributes:
        samples: The tokens after each prompt, in the order of the prompts.
        ends: Why each sample ended: `"eos"` with an end token, `"length"` with `max_new_tokens` tokens, `"full"` with
            a full cache, or `"stopped"` by the caller.
        prompt_tokens: The number of tokens of all prompts that were computed. A `Generator` does not compute cached
            tokens again.
        prefill_seconds: The time spent on the prompts.
        steps: The number of steps after the prompts.
        decoded: The number of tokens that these steps generated, for all samples together.
        drafted: The number of drafted tokens that these steps verified.
        accepted: The number of drafted tokens that the model would have chosen.
        decode_seconds: The time of these steps, including the choice of tokens.
        written_per_step: The bytes that the last step wrote into the caches. If the caches grow, this counts
            all of their bytes.
        copied: The bytes of static caches that ONNX Runtime copied, in all steps, instead of writing them in
            place.
        engine: The name and version of ONNX Runtime and its plugin.
        group_query_nodes: How many nodes of `GroupQueryAttention` the plugin computes, and how many the model has. Both
            are 0 for a model without such nodes, such as a converted one.
        texts: The text after each prompt, without special tokens, or None if the prompts are token ids.
    """

    samples: list[list[int]]
    ends: list[str]
    prompt_tokens: int
    prefill_seconds: float
    steps: int
    decoded: int
    drafted: int
    accepted: int
    decode_seconds: float
    written_per_step: int
    copied: int
    engine: str
    group_query_nodes: tuple[int, int]
    texts: list[str] | None = None

    @property
    def text(self) -> str:
        """The text after the only prompt."""
        if self.texts is None or len(self.texts) != 1:
            prompts = "token ids" if self.texts is None else f"{len(self.texts)} texts"
            raise AttributeError(f"text needs one prompt that is a text, and the prompts were {prompts}")
        return self.texts[0]

    def with_texts(self, texts: list[str]) -> Generated:
        """Returns the same with texts."""
        return replace(self, texts=texts)
