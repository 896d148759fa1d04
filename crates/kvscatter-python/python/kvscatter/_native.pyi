"""The compiled part of the package. At run time, its public classes and functions have docstrings, except
those of `paged`, `positions` and `ring`, which the modules of these names document."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvscatter._plan import Block, Segment
from kvscatter._session import Generated, MemoryReport
from kvscatter._status import StatusWords
from kvscatter._typing import (
    AnyArray,
    AttentionLayout,
    CacheType,
    CudaArray,
    CudaStream,
    Indices,
    Integer,
    Mode,
    NegativeIndex,
    OutOfRange,
    Shape,
    SupportsDLPack,
    TorchDType,
)
from kvscatter.errors import Error

__all__ = [
    "CudaStatus",
    "CudaWrite",
    "Generation",
    "KeptGenerator",
    "KvSession",
    "Logits",
    "Model",
    "OnnxModel",
    "OracleCases",
    "Plan",
    "Prepared",
    "PreparedAttention",
    "Prompts",
    "Sample",
    "Transaction",
    "__version__",
    "attention",
    "capture_command",
    "cuda_driver_version",
    "cuda_prepare",
    "cuda_prepare_kv_cache_operation",
    "cuda_prepare_kv_cache_update",
    "cuda_prepare_present",
    "cuda_prepare_slots",
    "error_kinds",
    "has_plugin",
    "integer_within",
    "kv_cache_operation_",
    "kv_cache_update_",
    "oracle_attention",
    "oracle_kv_cache_operation",
    "oracle_kv_cache_update",
    "oracle_tensor_scatter",
    "paged",
    "plan",
    "positions",
    "prepare",
    "prepare_attention",
    "resolve_axis",
    "restore_prepared",
    "ring",
    "run_command",
    "tensor_scatter",
    "tensor_scatter_",
    "time_memcpy",
    "time_rust_call",
    "write_many",
    "write_rows",
    "xla_attention_handlers",
    "xla_check",
    "xla_check_attention",
    "xla_handlers",
]

__version__: str

@final
class KvSession:
    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        batch: int | None = None,
        capacity: int | None = None,
        threads: int | None = None,
        memory: int = 17179869184,
        refuse_nan: bool = False,
        onnxruntime: str | PathLike[str] | None = None,
        plugin: bool | str | PathLike[str] = True,
    ) -> KvSession: ...
    @property
    def batch(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def group_query_nodes(self) -> tuple[int, int]: ...
    @property
    def vocabulary(self) -> int | None: ...
    @property
    def samples(self) -> list[Sample]: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def bytes_copied(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def add(self) -> Sample: ...
    def set_encoder_outputs(self, sample: Sample, outputs: Mapping[str, AnyArray]) -> None: ...
    def remove(self, sample: Sample) -> None: ...
    def truncate(self, sample: Sample, length: int) -> None: ...
    def cached_tokens(self, sample: Sample) -> int: ...
    def tokens(self, sample: Sample) -> list[int]: ...
    def begin(self, sample: Sample) -> None: ...
    def begun(self, sample: Sample) -> int | None: ...
    def commit(self, sample: Sample) -> None: ...
    def rollback(self, sample: Sample) -> None: ...
    def accept(self, sample: Sample, tokens: int) -> None: ...
    def accept_all(self, tokens: Mapping[Sample, int]) -> None: ...
    def accept_rows(self, sample: Sample, rows: Indices) -> None: ...
    def transaction(self, *samples: Sample) -> Transaction: ...
    def fork(self, sample: Sample, copies: int) -> list[Sample]: ...
    def reorder(self, samples: Sequence[Sample], parents: Indices) -> list[Sample]: ...
    def fingerprint(self) -> str: ...
    def save(self, sample: Sample, path: str | PathLike[str]) -> None: ...
    def load(self, path: str | PathLike[str]) -> Sample: ...
    def step(
        self, tokens: Mapping[Sample, Indices], *, block_ids: Mapping[Sample, Indices] | None = None
    ) -> Logits: ...
    def prefill(self, tokens: Mapping[Sample, Indices], *, chunk: int = 512) -> Logits: ...
    def memory(self) -> MemoryReport: ...
    def close(self) -> None: ...
    def __enter__(self) -> KvSession: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Transaction:
    def __enter__(self) -> None: ...
    def __exit__(self, exception_type: type[BaseException] | None, *_exception: object) -> None: ...

@final
class Sample:
    @property
    def batch_index(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Logits:
    @property
    def vocabulary(self) -> int: ...
    @property
    def samples(self) -> list[Sample]: ...
    def after(self, sample: Sample, token: int) -> NDArray[np.float32]: ...
    def last(self, sample: Sample) -> NDArray[np.float32]: ...

def tensor_scatter(
    past_cache: AnyArray,
    update: SupportsDLPack,
    write_indices: Indices | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Indices | None = None,
    out: AnyArray | None = None,
    negative_index: NegativeIndex = "modulo",
) -> AnyArray: ...
def tensor_scatter_(
    cache: SupportsDLPack,
    update: SupportsDLPack,
    write_indices: Indices | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
) -> int: ...
def write_many(
    pairs: Iterable[tuple[SupportsDLPack, SupportsDLPack]],
    write_indices: Indices | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
) -> int: ...
def kv_cache_update_(
    cache: SupportsDLPack,
    update: SupportsDLPack,
    writeIndices: Indices,
    updateLengths: Indices | None = None,
    *,
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
) -> int: ...
def kv_cache_operation_(
    past: SupportsDLPack,
    newKv: SupportsDLPack,
    layerId: Indices | Integer,
    tokenOffset: Indices,
    seqLen: Indices,
    *,
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
) -> int: ...
def write_rows(writes: Sequence[tuple[Prepared, SupportsDLPack, SupportsDLPack]], slot: int) -> bool: ...

@final
class PreparedAttention:
    def __call__(
        self,
        q: AnyArray,
        k: SupportsDLPack,
        v: SupportsDLPack,
        lengths: Indices | None = None,
        starts: Indices | None = None,
        mask: SupportsDLPack | None = None,
        sink: SupportsDLPack | None = None,
        k_scale: SupportsDLPack | None = None,
        v_scale: SupportsDLPack | None = None,
        block_tables: SupportsDLPack | None = None,
        out: AnyArray | None = None,
    ) -> AnyArray: ...

def attention(
    q: AnyArray,
    k: SupportsDLPack,
    v: SupportsDLPack,
    lengths: Indices | None = None,
    *,
    starts: Indices | None = None,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = 0.0,
    mask: SupportsDLPack | None = None,
    sink: SupportsDLPack | None = None,
    mode: Mode = "linear",
    layout: AttentionLayout = "bhsd",
    k_scale: SupportsDLPack | None = None,
    v_scale: SupportsDLPack | None = None,
    block_tables: SupportsDLPack | None = None,
    threads: int | None = None,
    out: AnyArray | None = None,
) -> AnyArray: ...
def prepare_attention(
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = 0.0,
    mask: SupportsDLPack | None = None,
    sink: SupportsDLPack | None = None,
    mode: Mode = "linear",
    layout: AttentionLayout = "bhsd",
    k_scale: SupportsDLPack | None = None,
    v_scale: SupportsDLPack | None = None,
    block_tables: SupportsDLPack | None = None,
    threads: int | None = None,
    out: SupportsDLPack | None = None,
) -> PreparedAttention: ...
@overload
def prepare(
    cache: SupportsDLPack,
    update: SupportsDLPack,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
    dtype: None = None,
) -> Prepared: ...
@overload
def prepare(
    cache: Shape,
    update: Shape,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
    dtype: DTypeLike | TorchDType,
) -> Prepared: ...
@overload
def plan(
    cache: SupportsDLPack,
    update: SupportsDLPack,
    write_indices: Indices | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
    dtype: None = None,
) -> Plan: ...
@overload
def plan(
    cache: Shape,
    update: Shape,
    write_indices: Indices | None = None,
    *,
    axis: int = -2,
    mode: Mode = "linear",
    lengths: Indices | None = None,
    out_of_range: OutOfRange = "error",
    negative_index: NegativeIndex = "modulo",
    dtype: DTypeLike | TorchDType,
) -> Plan: ...

@final
class Prepared:
    def __call__(
        self,
        cache: SupportsDLPack,
        update: SupportsDLPack,
        write_indices: Indices | None = None,
        lengths: Indices | None = None,
    ) -> int: ...
    def write(
        self,
        cache: SupportsDLPack,
        update: SupportsDLPack,
        write_indices: Indices | None = None,
        lengths: Indices | None = None,
    ) -> int: ...
    def many(
        self,
        pairs: Iterable[tuple[SupportsDLPack, SupportsDLPack]],
        write_indices: Indices | None = None,
        lengths: Indices | None = None,
    ) -> int: ...
    def into(
        self,
        past_cache: SupportsDLPack,
        update: SupportsDLPack,
        out: SupportsDLPack,
        write_indices: Indices | None = None,
        lengths: Indices | None = None,
    ) -> int: ...
    def plan(self, write_indices: Indices | None = None, lengths: Indices | None = None) -> Plan: ...
    def __copy__(self) -> Prepared: ...
    def __deepcopy__(self, _memo: object) -> Prepared: ...

@final
class Plan:
    @property
    def blocks(self) -> list[Block]: ...
    @property
    def segments(self) -> list[Segment]: ...
    @property
    def skipped(self) -> int: ...
    @property
    def skipped_samples(self) -> list[int]: ...
    @property
    def elements(self) -> int: ...
    @property
    def bytes(self) -> int | None: ...
    def write(self, cache: SupportsDLPack, update: SupportsDLPack) -> int: ...
    def text(self, *, width: int = 80, samples: int = 64, ascii: bool = False) -> str: ...
    def svg(self, *, samples: int = 64) -> str: ...
    def _repr_html_(self) -> str: ...
    def __copy__(self) -> Plan: ...
    def __deepcopy__(self, _memo: object) -> Plan: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

# `kvscatter.cuda`

_CudaPairs: TypeAlias = Iterable[tuple[CudaArray, CudaArray]]

def cuda_driver_version() -> int: ...
def cuda_prepare(
    pairs: _CudaPairs,
    write_indices: CudaArray | None = None,
    *,
    lengths: CudaArray | None = None,
    axis: int = -2,
    mode: Mode = "linear",
    negative_index: NegativeIndex = "modulo",
    skip_all: bool = False,
    status: CudaArray | None = None,
) -> CudaWrite: ...
def cuda_prepare_present(
    triples: Iterable[tuple[CudaArray, CudaArray, CudaArray]],
    write_indices: CudaArray | None = None,
    *,
    lengths: CudaArray | None = None,
    axis: int = -2,
    mode: Mode = "linear",
    negative_index: NegativeIndex = "modulo",
    skip_all: bool = False,
    status: CudaArray | None = None,
) -> CudaWrite: ...
def cuda_prepare_kv_cache_update(
    pairs: _CudaPairs,
    writeIndices: CudaArray,
    updateLengths: CudaArray | None = None,
    *,
    lengths: CudaArray | None = None,
    skip_all: bool = False,
    status: CudaArray | None = None,
) -> CudaWrite: ...
def cuda_prepare_kv_cache_operation(
    pairs: _CudaPairs,
    layerId: CudaArray,
    tokenOffset: CudaArray,
    seqLen: CudaArray,
    *,
    lengths: CudaArray | None = None,
    skip_all: bool = False,
    status: CudaArray | None = None,
) -> CudaWrite: ...
def cuda_prepare_slots(
    pairs: _CudaPairs,
    slot_mapping: CudaArray,
    *,
    axis: int = 1,
    skip_all: bool = False,
    status: CudaArray | None = None,
) -> CudaWrite: ...

@final
class CudaWrite:
    def launch(self, stream: CudaStream | None = None) -> None: ...
    @property
    def status(self) -> CudaStatus: ...
    @property
    def width(self) -> int | None: ...

@final
class CudaStatus:
    def check(self, words: tuple[int, int, int] | SupportsDLPack | None = None) -> None: ...
    def read(self) -> StatusWords: ...
    @property
    def array(self) -> Any: ...
    def clear(self, stream: CudaStream | None = None) -> None: ...

# The rest is for the modules of this package only.

_Numbers: TypeAlias = Integer | Indices
_Positions64: TypeAlias = int | NDArray[np.int64]

class _Positions(Protocol):
    def length_after(self, start: _Numbers, rows: _Numbers) -> _Positions64: ...
    def start_from_length_after(self, length: _Numbers, rows: _Numbers) -> _Positions64: ...
    def token_offset(self, start: _Numbers, rows: _Numbers) -> _Positions64: ...
    def start_from_token_offset(self, token_offset: _Numbers, rows: _Numbers) -> _Positions64: ...
    def seqlens_k(self, start: _Numbers, rows: _Numbers) -> _Positions64: ...
    def start_from_seqlens_k(self, last: _Numbers, rows: _Numbers) -> _Positions64: ...
    def nonpad_kv_seqlen(self, start: _Numbers, rows: _Numbers, capacity: int, mode: str) -> _Positions64: ...
    def start_from_nonpad_kv_seqlen(
        self, length: _Numbers, rows: _Numbers, capacity: int, mode: str
    ) -> _Positions64: ...

positions: _Positions

class _Ring(Protocol):
    def most_rows(
        self, capacity: Integer, window: Integer, high: _Numbers, start: _Numbers
    ) -> _Positions64: ...
    def least_start(self, capacity: Integer, window: Integer, high: _Numbers) -> _Positions64: ...
    def high_after(self, high: _Numbers, start: _Numbers, rows: _Numbers) -> _Positions64: ...
    def least_capacity(self, window: Integer, rows: Integer, rewind: Integer, feeding: str) -> int: ...

ring: _Ring

class _Paged(Protocol):
    def slot_mapping(
        self,
        block_tables: SupportsDLPack,
        seq_lens: Indices,
        new_tokens: _Numbers,
        block_size: Integer,
        num_blocks: Integer,
    ) -> NDArray[np.int64]: ...
    def write_(
        self,
        pairs: Iterable[tuple[SupportsDLPack, SupportsDLPack]],
        slot_mapping: Indices,
        layout: AttentionLayout,
        skip_negative: bool,
    ) -> int: ...

paged: _Paged

# The names of the element types, the cache's shape and the update's shape.
_Tensors: TypeAlias = tuple[Sequence[str], Sequence[int], Sequence[int]]
# The rule, the message and the fields.
_Broken: TypeAlias = tuple[str, str, dict[str, int]]
_Answer: TypeAlias = tuple[NDArray[np.int64], int, None] | tuple[None, Literal[0], _Broken]

def oracle_attention(
    element: Literal["float", "float16", "bfloat16"],
    q: NDArray[np.float64],
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    lengths: Sequence[int],
    ring: bool,
    mask: NDArray[np.bool_] | NDArray[np.float64] | None,
    attributes: tuple[bool, int, float | None, float],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]: ...
def oracle_tensor_scatter(
    tensors: _Tensors,
    write_indices: Sequence[int] | None,
    axis: int,
    mode: str,
    lengths: Sequence[int] | None,
    policies: tuple[bool, bool],
) -> _Answer: ...
def oracle_kv_cache_update(
    tensors: _Tensors,
    write_indices: Sequence[int],
    update_lengths: Sequence[int] | None,
    lengths: Sequence[int] | None,
    skip: bool,
) -> _Answer: ...
def oracle_kv_cache_operation(
    tensors: _Tensors,
    layer_id: Sequence[int],
    token_offset: Sequence[int],
    seq_len: Sequence[int],
    lengths: Sequence[int] | None,
    skip: bool,
) -> _Answer: ...

@final
class OracleCases:
    def __new__(
        cls,
        seed: int,
        operators: Sequence[str],
        elements: Sequence[str],
        available: Sequence[str],
        extensions: Sequence[str],
    ) -> OracleCases: ...
    def __iter__(self) -> OracleCases: ...
    def __next__(self) -> dict[str, Any]: ...

@final
class OnnxModel:
    @staticmethod
    def from_bytes(bytes: bytes) -> OnnxModel: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> OnnxModel: ...
    def inputs(self) -> list[tuple[str, bool]]: ...
    def outputs(self) -> list[str]: ...
    def run(
        self, feeds: Sequence[tuple[str, str, Sequence[int], NDArray[np.uint8] | Sequence[bytes]]]
    ) -> list[tuple[str, list[int], NDArray[np.uint8] | list[bytes]]]: ...

@final
class Model:
    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        convert: bool = True,
        max_seq: int | None = None,
        cache_type: CacheType | None = None,
        rotation: bool = True,
        capacity: int | None = None,
        threads: int | None = None,
        memory: int = 17179869184,
        onnxruntime: str | PathLike[str] | None = None,
        plugin: bool | str | PathLike[str] = True,
    ) -> Model: ...
    @property
    def folder(self) -> Path: ...
    @property
    def vocabulary(self) -> int | None: ...
    @property
    def is_converted(self) -> bool: ...
    def check(
        self,
        prompts: Prompts,
        generation: Generation,
        *,
        prefix: str | PathLike[str] | None = None,
        save_prefix: str | PathLike[str] | None = None,
    ) -> None: ...
    def open(
        self,
        report: Callable[[Literal["nothing", "converted", "reused"], str], object],
        *,
        batch: int | None = 1,
        prompts: Prompts | None = None,
        generation: Generation | None = None,
        prefix: str | PathLike[str] | None = None,
    ) -> KeptGenerator: ...

@final
class Prompts:
    def __new__(cls, prompts: Iterable[Indices]) -> Prompts: ...
    def __len__(self) -> int: ...

@final
class Generation:
    def __new__(
        cls,
        max_new_tokens: int | None = None,
        *,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        eos: Indices | None = (),
        chunk: int = 512,
        draft: int = 0,
        progress: Callable[[int, int], object] | None = None,
    ) -> Generation: ...
    @property
    def has_eos(self) -> bool: ...
    def with_eos(self, eos: Indices) -> Generation: ...

@final
class KeptGenerator:
    @property
    def capacity(self) -> int | None: ...
    @property
    def engine(self) -> str: ...
    @property
    def vocabulary(self) -> int | None: ...
    def generate(
        self,
        prompts: Prompts,
        generation: Generation,
        *,
        watch: Callable[[list[list[int]]], Sequence[tuple[int, int]]] | None = None,
        save_prefix: str | PathLike[str] | None = None,
    ) -> Generated: ...
    def close(self) -> None: ...

def error_kinds() -> list[tuple[str, type[Error], list[str]]]: ...
def resolve_axis(axis: int, rank: int) -> int: ...
def integer_within(argument: str, value: object, min: int, max: int) -> int: ...
def restore_prepared(
    cache: tuple[str, str, Sequence[int], Sequence[int]],
    update: tuple[str, str, Sequence[int], Sequence[int]],
    axis: int,
    mode: Mode,
    out_of_range: OutOfRange,
    negative_index: NegativeIndex,
) -> Prepared: ...
def xla_handlers() -> dict[str, object]: ...
def xla_attention_handlers() -> dict[str, object]: ...
def xla_check_attention(
    elements: tuple[str, str],
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int] | None, Sequence[int] | None],
    has_sinks: bool,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    mode: str,
    layout: str,
) -> None: ...
def xla_check(
    past: Sequence[int],
    update: Sequence[int],
    counts: Sequence[int],
    axis: int,
    mode: str,
    out_of_range: str,
) -> int: ...
def time_rust_call(
    write: Prepared,
    cache: SupportsDLPack,
    update: SupportsDLPack,
    write_indices: Indices,
    repeats: int,
) -> int: ...
def run_command(arguments: Sequence[str], template_evaluator: Sequence[str]) -> int: ...
def capture_command(arguments: Sequence[str]) -> tuple[bytes, str | None]: ...
def has_plugin(library: str | PathLike[str]) -> bool: ...
def time_memcpy(bytes: int, repeats: int) -> int: ...
