"""What ``kvscatter.certify`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvscatter._conversion import RingSize

Verdict: TypeAlias = Literal["passed", "failed", "not_applicable", "not_measured", "not_comparable"]
"""The result of a claim, or of all claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """A file of a model.

    Attributes:
        name: The name, without the folder.
        bytes: The size.
        sha256: The SHA-256 of its bytes, in hexadecimal digits.
    """

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opset:
    """An operator set that a model imports.

    Attributes:
        domain: The domain of the operators.
        version: The version.
    """

    domain: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, identified by the contents of its files.

    Attributes:
        file: The model's file.
        external_data: The files of its external data.
        ir_version: The version of the ONNX file format, if the file has it.
        opsets: The operator sets that it imports.
        producer: The program that wrote it, or an empty text.
        compared: What ``convert`` compared, if it wrote the model.
    """

    file: FileIdentity
    external_data: tuple[FileIdentity, ...]
    ir_version: int | None
    opsets: tuple[Opset, ...]
    producer: str
    compared: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesInPlugin:
    """The nodes of ``GroupQueryAttention``.

    Attributes:
        nodes: The number of nodes.
        in_plugin: The number that the plugin computes.
    """

    nodes: int
    in_plugin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The runtime that ran the model.

    Attributes:
        name: The name.
        version: The version.
        device: The device, such as ``CPU``.
        plugin: The name and version of the plugin, or None.
        group_query_nodes: The nodes of ``GroupQueryAttention``, if there are any.
    """

    name: str
    version: str
    device: str
    plugin: str | None
    group_query_nodes: NodesInPlugin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine on which the model ran.

    Attributes:
        cpu: The processor, or an empty text.
        cores: The number of cores that the process may use.
        os: The operating system and architecture.
    """

    cpu: str
    cores: int
    os: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedCache:
    """A cache of the model.

    Attributes:
        past: The input.
        present: The output.
        shape: The dimensions as the model declares them.
        element: The element type, by its ONNX name.
        style: How the graph writes the cache.
        bytes: The bytes for all samples and slots.
        ring: The size of the ring, or None for a linear cache.
    """

    past: str
    present: str
    shape: tuple[str, ...]
    element: str
    style: str
    bytes: int
    ring: RingSize | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCaches:
    """The caches that a decoder would have without rings.

    Attributes:
        capacity: The slots of each sample.
        bytes: The bytes of all caches.
    """

    capacity: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCaches:
    """The caches of the model.

    Attributes:
        caches: The caches, in the order of the inputs.
        bytes: The bytes of all caches.
        bytes_per_token: The bytes of one more token of one sample.
        without_rings: The caches without rings, if there are rings.
    """

    caches: tuple[CertifiedCache, ...]
    bytes: int
    bytes_per_token: int
    without_rings: LinearCaches | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The sizes, the seed and the tolerance of the runs.

    Attributes:
        batch: The number of samples.
        capacity: The slots of each sample.
        steps: The decode steps after the prompts.
        prompts: The tokens in the prompt of each sample.
        chunk: The most tokens of a sample in a step of a chunked prefill.
        seed: The seed of tokens and canaries.
        tolerance: The largest difference of logits that counts as equal.
    """

    batch: int
    capacity: int
    steps: int
    prompts: tuple[int, ...]
    chunk: int
    seed: int
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFailure:
    """A place where a claim does not hold. Fields that do not apply are None.

    Attributes:
        message: The fault, as a sentence.
        scenario: The scenario.
        step: The step in the scenario, counted from 0.
        cache: The input of the cache.
        sample: The sample, counted from 0.
        slot: The slot, counted from 0.
    """

    message: str
    scenario: str | None = None
    step: int | None = None
    cache: str | None = None
    sample: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim and its verdict.

    Attributes:
        id: The name, which is the same in every version.
        claim: The claim, as a sentence.
        verdict: The verdict.
        evidence: What was examined, or why it was not examined.
        failures: The first places where the claim does not hold.
        failure_count: The number of all such places.
    """

    id: str
    claim: str
    verdict: Verdict
    evidence: str
    failures: tuple[CheckFailure, ...]
    failure_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The claims, by the kind of their evidence.

    Attributes:
        structural: Claims that the graph proves.
        observed: Claims about memory and logits in these runs.
        timed: Claims about times on this machine.
    """

    structural: tuple[Check, ...]
    observed: tuple[Check, ...]
    timed: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitPlace:
    """The place of a logit.

    Attributes:
        step: The step in the scenario, counted from 0.
        sample: The sample, counted from 0.
        token: The token in the step, counted from 0.
        entry: The token id of the logit.
    """

    step: int
    sample: int
    token: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsComparison:
    """The differences between the logits of a run and their reference.

    Attributes:
        scenario: The scenario.
        fill: What the caches contained before: ``"zeros"`` or ``"canaries"``.
        against: The reference: ``"original"`` or ``"unaliased_run"``.
        compared: The number of logits that were compared.
        worst: The largest difference of finite logits.
        worst_at: Its place, or None if no logit differs.
        worst_by_step: The largest difference in each step.
        not_finite: The number of logits that are infinite or NaN on either side.
        tolerance: The largest difference that counts as equal.
        greedy_compared: The number of tokens after which both sides have a most likely token.
        greedy_equal: The number of those after which it is the same.
    """

    scenario: str
    fill: str
    against: str
    compared: int
    worst: float
    worst_at: LogitPlace | None
    worst_by_step: tuple[float, ...]
    not_finite: int
    tolerance: float
    greedy_compared: int
    greedy_equal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRange:
    """Slots in ascending order.

    Attributes:
        start: The first slot.
        end: The slot after the last one.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSlots:
    """The slots of a sample in a step.

    Attributes:
        written: The slots that the write indices name.
        valid: The slots that contain tokens after the step.
        clobbered: The slots that changed although the write indices do not name them.
    """

    written: tuple[SlotRange, ...]
    valid: tuple[SlotRange, ...]
    clobbered: tuple[SlotRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancyStep:
    """The slots that a step writes.

    Attributes:
        phase: What the step feeds: ``"prefill"``, ``"chunk"`` or ``"decode"``.
        rows: The rows of each sample, padding included.
        samples: The slots of each sample.
    """

    phase: str
    rows: int
    samples: tuple[SampleSlots, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The slots that the steps of a scenario write.

    Attributes:
        scenario: The scenario.
        description: What it does, as a sentence.
        capacity: The slots of each sample.
        steps: The steps.
        is_ring: Whether the caches are rings.
    """

    scenario: str
    description: str
    capacity: int
    steps: tuple[OccupancyStep, ...]
    is_ring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """The errors of the rows that a cache of half types or int8 stores.

    Attributes:
        cache: The input of the cache.
        layer: The layer, counted from 0.
        element: The element type, by its ONNX name.
        compared: The number of elements that were compared.
        worst: The largest error as a part of its bound.
        largest_error: The largest error.
        largest_given: The largest magnitude of a given element.
        score_bound: The largest change of a score by errors of these keys, if it is known.
        output_bound: The largest change of an output by errors of these values, if they are values.
    """

    cache: str
    layer: int
    element: str
    compared: int
    worst: float
    largest_error: float
    largest_given: float
    score_bound: float | None = None
    output_bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How far the distributions of the next token are from the original's.

    Attributes:
        tokens: The number of tokens after which they were compared.
        mean_kl: The mean of the Kullback-Leibler divergences, in nats.
        p99_kl: The divergence that 99 of 100 tokens do not exceed.
        same_top_1: The number of tokens after which the most likely token is the same.
        largest_difference: The largest difference of two logits.
        limit: The largest mean that counts as close.
    """

    tokens: int
    mean_kl: float
    p99_kl: float
    same_top_1: int
    largest_difference: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityTime:
    """The time of a write at one capacity.

    Attributes:
        capacity: The slots of each sample.
        cache_bytes: The bytes of the cache.
        median_ns: The median of the calls, in nanoseconds.
        fastest_ns: The shortest call, in nanoseconds.
    """

    capacity: int
    cache_bytes: int
    median_ns: float
    fastest_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePathTimes:
    """The times of the nodes between a past and its present.

    Attributes:
        caches: The number of caches that were timed.
        cache: The input of the cache whose time grows most.
        batch: The number of samples.
        context: The slot that is written.
        rounds: The number of rounds.
        at: The times, the smallest capacity first.
        ratio: The shortest time at the largest capacity, divided by that at the smallest one.
        flat_up_to: The largest ratio that counts as constant.
    """

    caches: int
    cache: str
    batch: int
    context: int
    rounds: int
    at: tuple[CapacityTime, ...]
    ratio: float
    flat_up_to: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesMoved:
    """The bytes that a decode step reads and writes to update the caches.

    Attributes:
        batch: The number of samples.
        capacity: The slots of each sample.
        in_place: The bytes if caches are written in place.
        copied: The bytes if caches are copied.
    """

    batch: int
    capacity: int
    in_place: int
    copied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The memory of a process that ran a model.

    Attributes:
        of: Which model ran: ``"model"`` or ``"original"``.
        batch: The number of samples.
        steps: The decode steps that were run.
        context: The tokens of each sample after the last step.
        bytes: The largest resident size above that before the first step, if the system reports it.
    """

    of: str
    batch: int
    steps: int
    context: int
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTime:
    """The time of a decode step after a context.

    Attributes:
        context: The tokens of each sample before the step.
        model_ns: The median time of the model, in nanoseconds.
        original_ns: That of the original, if there is one.
    """

    context: int
    model_ns: float
    original_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTimes:
    """The times of whole decode steps.

    Attributes:
        batch: The number of samples.
        capacity: The slots of each sample.
        rounds: The number of rounds.
        at: The times, the shortest context first.
        crossover: Where the model is faster than the original: ``"always"``, ``"never"``, ``"unclear"``, or
            ``{"from": context}``. None without an original.
    """

    batch: int
    capacity: int
    rounds: int
    at: tuple[DecodeTime, ...]
    crossover: str | dict[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The times and sizes of a certificate. What was not measured is None.

    Attributes:
        cache_path: The times of the nodes that update a cache.
        bytes_moved: The bytes that a decode step moves in the caches, computed from shapes.
        peak_memory: The memory of a run of each model.
        decode: The times of whole decode steps.
    """

    cache_path: CachePathTimes | None
    bytes_moved: BytesMoved | None
    peak_memory: tuple[PeakMemory, ...]
    decode: DecodeTimes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The claims about the caches of a decoder, with their verdicts and evidence.

    Attributes:
        schema: The version of the format.
        tool_version: The version of kvscatter.
        command: The command that makes the certificate again.
        verdict: The verdict on all claims. A program should accept only ``"passed"``.
        model: The model.
        original: The model that it was compared with, or None.
        runtime: The runtime that ran it.
        machine: The machine.
        decoder: The caches.
        parameters: The sizes, the seed and the tolerance of the runs.
        evidence: The claims.
        second_opinion: The reference of the logits: ``"none"`` for runs of the same model, or
            ``"original_in_same_engine"``.
        logits: The differences of the logits, for each scenario and fill.
        occupancy: The slots that each step wrote.
        timings: The times and sizes, or None if nothing was timed.
        made_at: The time in UTC.
        stored: The errors of rows in narrow caches.
        divergence: The divergence from the original, for narrow caches.
    """

    schema: int
    tool_version: str
    command: str
    verdict: Verdict
    model: Subject
    original: Subject | None
    runtime: Runtime
    machine: Machine
    decoder: DecoderCaches
    parameters: Parameters
    evidence: Evidence
    second_opinion: str
    logits: tuple[LogitsComparison, ...]
    occupancy: tuple[Occupancy, ...]
    timings: Timings | None
    made_at: str | None = None
    stored: tuple[StoredRows, ...] = ()
    divergence: Divergence | None = None
