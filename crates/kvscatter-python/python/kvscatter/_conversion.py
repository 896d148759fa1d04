"""What ``kvscatter.convert`` and ``kvscatter.lower`` return."""

from __future__ import annotations

from dataclasses import dataclass

from kvscatter._inspection import MergedBranch, StackedCaches


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSize:
    """The size of a ring.

    Attributes:
        capacity: The slots of each sample.
        window: The tokens that a token sees, itself included.
        chunk: The most rows of a sample in a step, padding included.
        rewind: The tokens that a sample can be taken back from its furthest token.
    """

    capacity: int
    window: int
    chunk: int
    rewind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings(RingSize):
    """The rings of one size.

    Attributes:
        caches: The number of caches of this size.
    """

    caches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWindow:
    """Attention with a window that reads linear caches.

    Attributes:
        window: The tokens that a token sees, itself included.
        attentions: The number of such attention operations.
        reason: Why they have no ring.
    """

    window: int
    attentions: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowCaches:
    """The caches that got another type.

    Attributes:
        cache_type: The type.
        caches: The number of caches.
        description: The type and the number, as words.
        scales: The input of each cache of codes, with that of its scales.
        rotated: The number of caches whose keys are rotated.
        unrotated_head_sizes: The sizes of heads whose keys cannot be rotated.
    """

    cache_type: str
    caches: int
    description: str
    scales: dict[str, str]
    rotated: int
    unrotated_head_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass of a conversion.

    Attributes:
        name: The name.
        change: What it changed.
        keeps: What it keeps.
        proof: What was compared to prove that.
    """

    name: str
    change: str
    keeps: str
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAttention:
    """An attention operation that could not become one node.

    Attributes:
        output: The output of its nodes.
        reason: The reason.
    """

    output: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state beside the caches, which is not changed.

    Attributes:
        past: The input.
        present: The output.
        columns: The output with the columns of a convolution, from which follows the state after each token, or None.
    """

    past: str
    present: str
    columns: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRatio:
    """How many slots attention reads for each token of a context.

    Attributes:
        context: The number of tokens.
        ratio: The number of slots divided by it, rounded down.
    """

    context: int
    ratio: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCost:
    """The cost of static caches. Bytes are those of all caches, and None if the model leaves a size open.

    Attributes:
        bytes_per_sample: The bytes of a sample.
        bytes_per_linear_sample: The bytes of a sample without rings.
        bytes_per_slot: The bytes of a slot.
        slots_per_step: The slots of each sample that are an input of attention in every step.
        takes_length: Whether attention also takes the used length, so that an engine can stop there.
        slots_to_context: The slots compared with some contexts.
        most_tokens: The most tokens of a sample if all caches are rings, else None.
    """

    bytes_per_sample: int | None
    bytes_per_linear_sample: int | None
    bytes_per_slot: int | None
    slots_per_step: int
    takes_length: bool
    slots_to_context: tuple[ContextRatio, ...]
    most_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """A file of weights of the new model.

    Attributes:
        path: The path.
        bytes: The size.
        placed: How it got there: ``"copied"``, ``"linked"``, ``"kept"`` or ``"shared"``.
    """

    path: str
    bytes: int
    placed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A converted decoder.

    Attributes:
        model: The path of the exported model.
        output: The path of the converted model.
        max_seq: The slots of each sample.
        caches: The number of caches.
        rings: The rings, by size.
        linear_windows: Attention with a window that has no ring.
        attentions: The number of attention operations.
        attention_nodes: The number of them that are ``Attention`` nodes.
        fused: The number of these nodes that replace separate nodes.
        idioms: What the nodes of the exported attention do, with the number of nodes.
        passes: The passes of the conversion.
        kept: Attention operations that could not become one node.
        write_indices: The input of the first position of each sample.
        attention_mask: The input of the mask, or None.
        nonpad_kv_seqlen: The input of the used lengths, or None.
        least_onnxruntime: The oldest ONNX Runtime that runs the model without the plugin.
        states: States beside the caches.
        unknown_inputs: The inputs whose meaning the graph does not show.
        refusal: The reason why sessions do not run the model, or None if they do.
        cost: The cost of the caches.
        files: The files of weights.
        merged: The branch of a merged decoder that was converted.
        stacked: The inputs that had all layers, or None if there were none.
        encoder_output: The path of the encoder, if one was written.
        narrow: The caches that got another type, or None.
    """

    model: str
    output: str
    max_seq: int
    caches: int
    rings: tuple[Rings, ...]
    linear_windows: tuple[LinearWindow, ...]
    attentions: int
    attention_nodes: int
    fused: int
    idioms: dict[str, int]
    passes: tuple[Pass, ...]
    kept: tuple[KeptAttention, ...]
    write_indices: str
    attention_mask: str | None
    nonpad_kv_seqlen: str | None
    least_onnxruntime: str
    states: tuple[State, ...]
    unknown_inputs: tuple[str, ...]
    refusal: str | None
    cost: StaticCost
    files: tuple[WeightFile, ...]
    merged: MergedBranch | None = None
    stacked: StackedCaches | None = None
    encoder_output: str | None = None
    narrow: NarrowCaches | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """A model without ``TensorScatter``.

    Attributes:
        model: The path of the model.
        output: The path of the new model.
        operator: The operator that replaces ``TensorScatter``.
        scatters: The number of nodes that were replaced.
        index_nodes: The number of nodes that compute the indices.
        files: The files of weights.
    """

    model: str
    output: str
    operator: str
    scatters: int
    index_nodes: int
    files: tuple[WeightFile, ...]
