"""What ``kvscatter.inspect`` returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a graph.

    Attributes:
        index: The index in the graph, counted from 0.
        name: The name. It may be empty.
        operator: The operator.
    """

    index: int
    name: str
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCost:
    """The cost of caches, in bytes of all samples. Unknown numbers are None.

    Attributes:
        bytes_per_token: The bytes of one token.
        bytes: The bytes of the caches, as the model has them.
        copied_per_step: The bytes that a step of one token copies.
        static_bytes: The bytes of static caches.
        static_copied_per_step: The bytes that a step copies with static caches.
    """

    bytes_per_token: int | None
    bytes: int | None
    copied_per_step: int | None
    static_bytes: int | None
    static_copied_per_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScales:
    """The scales of a cache that contains codes, one for each token and head.

    Attributes:
        past: The input.
        present: The output.
        type: The element type, by its ONNX name.
        shape: The dimensions. A symbolic one is its name, and an unknown one is ``?``.
        writer: The node that writes them.
    """

    past: str
    present: str
    type: str
    shape: tuple[str, ...]
    writer: Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCache(CacheCost):
    """A cache of a decoder. The cost contains that of its scales.

    Attributes:
        past: The input.
        present: The output.
        style: How the graph writes the cache.
        holds: What the cache contains, such as ``keys``.
        attentions: The number of attention operations that read the cache, or None if it was not counted.
        type: The element type, by its ONNX name.
        shape: The dimensions. A symbolic one is its name, and an unknown one is ``?``.
        axis: The dimension of the tokens, or None.
        writer: The node that writes the cache.
        between: The nodes that make another tensor of the size of the cache.
        scales: The scales, if the cache contains codes.
    """

    past: str
    present: str
    style: str
    holds: str
    attentions: int | None
    type: str
    shape: tuple[str, ...]
    axis: int | None
    writer: Node | None
    between: tuple[Node, ...]
    scales: CacheScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderInput:
    """An input that is no cache.

    Attributes:
        name: The name.
        is_: The role, such as ``token ids``.
        type: The element type, by its ONNX name.
        shape: The dimensions, or None. A symbolic one is its name, and an unknown one is ``?``.
    """

    name: str
    is_: str
    type: str
    shape: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """What prevents writes in place, or makes them wrong.

    Attributes:
        kind: The name of the hazard.
        cache: The input of the cache, if the hazard is about one.
        node: The node, if the hazard is about one.
        message: The hazard, as a sentence.
    """

    kind: str
    cache: str | None
    node: Node | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRing:
    """A ring and one of its readers. If there is a hazard, the sizes are None.

    Attributes:
        cache: The input of the cache.
        reader: The node that reads the ring.
        capacity: The slots of each sample.
        window: The tokens that a token sees, itself included.
        chunk: The most rows of a sample in a step, padding included.
        rewind: The tokens that a sample can be taken back from its furthest token.
        hazard: The kind of the hazard, or None.
    """

    cache: str
    reader: Node | None
    capacity: int | None
    window: int | None
    chunk: int | None
    rewind: int | None
    hazard: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWindow:
    """The window of an attention.

    Attributes:
        cache: The input with the keys.
        window: The tokens that a token sees, itself included, or None if it sees all.
    """

    cache: str
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What ``kvscatter.convert`` would make of the model.

    Attributes:
        max_seq: The slots of each sample.
        refused: The reason why the model cannot be converted, or None.
        windows: The windows of the model's attention.
        linear_bytes: The bytes of all caches if all are linear, or None if a size is open.
        ring_bytes: The bytes of all caches with rings, or None without a ring.
    """

    max_seq: int
    refused: str | None
    windows: tuple[CacheWindow, ...]
    linear_bytes: int | None
    ring_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedNode:
    """A node that a runtime or the plugin does not take.

    Attributes:
        node: The node.
        message: The reason.
    """

    node: Node
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueryNodes:
    """The nodes of ``GroupQueryAttention``.

    Attributes:
        nodes: The number of nodes.
        in_plugin: The number that kvscatter's plugin takes.
        left: The others.
    """

    nodes: int
    in_plugin: int
    left: tuple[RefusedNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBranch:
    """The branch of a merged decoder that is used.

    Attributes:
        input: The input that chooses the branch.
        value: Its value.
    """

    input: str
    value: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedInput:
    """An input that has all layers.

    Attributes:
        input: Its name.
        output: The output that returns it with new rows, or None for a cross cache.
        layers: The input of each layer that takes its place.
    """

    input: str
    output: str | None
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedCaches:
    """Caches that have all layers in one tensor.

    Attributes:
        offset: The input with the number of tokens so far.
        inputs: The inputs that have all layers.
    """

    offset: str
    inputs: tuple[StackedInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The caches of a decoder, their cost, and what is wrong with them.

    Attributes:
        model: The path of the model.
        batch: The samples for which the costs are computed.
        length: The tokens of each sample in the cache.
        capacity: The slots of each sample in a static cache.
        caches: The caches.
        total: The cost of all caches.
        inputs: The other inputs.
        logits: The output with the logits, or None if it is not known.
        hazards: What prevents writes in place.
        rings: The rings, once for each node that reads one.
        convert: What a conversion would make, or None if there is nothing to convert.
        merged: The branch of a merged decoder that was inspected.
        stacked: The inputs that have all layers, or None if there are none.
        group_query_nodes: The nodes of ``GroupQueryAttention``, or None if there are none.
        tensorrt: The nodes that TensorRT refuses, or None without ``target="tensorrt"``.
    """

    model: str
    batch: int
    length: int
    capacity: int
    caches: tuple[InspectedCache, ...]
    total: CacheCost
    inputs: tuple[DecoderInput, ...]
    logits: str | None
    hazards: tuple[Hazard, ...]
    rings: tuple[CheckedRing, ...]
    convert: Advice | None
    merged: MergedBranch | None = None
    stacked: StackedCaches | None = None
    group_query_nodes: GroupQueryNodes | None = None
    tensorrt: tuple[RefusedNode, ...] | None = None
