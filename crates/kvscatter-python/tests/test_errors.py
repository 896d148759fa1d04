"""Each error of the core has a class, a kind and its fields, and this module causes each error that Python
can cause."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

import kvscatter
from kvscatter import errors, paged, positions
from kvscatter._native import error_kinds
from kvscatter.onnx_backend import ModelError
from kvscatter.reference import Refused
from support import refused

Array = NDArray[Any]
SOURCE = Path(__file__).parents[1] / "src"
# The core's errors by name, with the class and the fields of each.
KINDS = {name: (of, set(fields)) for name, of, fields in error_kinds()}
# Fields that Python adds to those of the core, to identify one of many values.
ADDED = {("invalid_position", "length"): {"index"}}


def f32(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.float32)


def f16(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.float16)


def scatter(cache: Array, update: Array, *indices: object, **options: Any) -> Callable[[], object]:
    return lambda: kvscatter.tensor_scatter_(cache, update, *indices, **options)  # type: ignore[arg-type]


def tensorrt(cache: Array, update: Array, *indices: object, **options: Any) -> Callable[[], object]:
    return lambda: kvscatter.kv_cache_update_(cache, update, *indices, **options)  # type: ignore[arg-type]


def packed(ends: list[int]) -> Callable[[], object]:
    samples, tokens = len(ends) - 1, max(ends)
    return tensorrt(f32(samples, 1, 4, 2), f32(tokens, 1, 2), [0] * samples, ends)


def in_blocks(slots: list[int]) -> Callable[[], object]:
    return lambda: paged.write_([(f32(2, 1, 2, 2), f32(len(slots), 1, 2))], slots)


def ascend(
    layer: object = 1, offsets: object = (2, 1), lengths: object = (2, 1), /, **options: Any
) -> Callable[[], object]:
    new = options.pop("new", f16(3, 6))
    past = f16(2, 2, 4, 6)
    return lambda: kvscatter.kv_cache_operation_(past, new, layer, offsets, lengths, **options)  # type: ignore[arg-type]


def overlapping() -> Callable[[], object]:
    memory = f32(1, 1, 4, 2)
    return scatter(memory, memory[:, :, 1:2], [0])


# The second row would be below address 0, because no address of a process is as large as the stride.
BELOW_ZERO = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 2, 1), (0, -(1 << 60), 4))


def entangled() -> Callable[[], object]:
    inner = (2, 3, 2, 3, 2)
    return scatter(f32(1, 4, *inner), f32(1, 4, *inner[::-1])[:, :1].transpose(0, 1, 6, 5, 4, 3, 2), axis=1)


def too_large() -> object:
    huge = (2, 2**40, 2**40)
    return kvscatter.prepare(huge, (2, 1, 2**40), dtype="float32")


def self_overlapping() -> Callable[[], object]:
    cache = np.lib.stride_tricks.as_strided(f32(8), (2, 4, 1), (4, 4, 4))
    return scatter(cache, f32(2, 1, 1))


# The rows of each class: the kind, the argument, the fields, and a call that causes the error.
CAUSED: dict[type[errors.Error], list[tuple[str, str | None, dict[str, Any], Callable[[], object]]]] = {
    errors.ElementTypeError: [
        (
            "element_type",
            "cache",
            {"element": "int8"},
            tensorrt(np.zeros((1, 1, 4, 2), np.int8), np.zeros((1, 1, 1, 2), np.int8), [0]),
        ),
        (
            "element_type",
            "past",
            {"element": "float32"},
            lambda: kvscatter.kv_cache_operation_(f32(1, 1, 4, 2), f32(1, 2), 0, [1], [1]),
        ),
        (
            "element_type_mismatch",
            "update",
            {"element": "float16", "cache": "float32"},
            scatter(f32(1, 4, 2), f16(1, 1, 2)),
        ),
    ],
    errors.ShapeError: [
        ("rank", "cache", {"rank": 3, "expected": (4,)}, tensorrt(f32(1, 4, 2), f32(1, 1, 2), [0])),
        ("rank", "newKv", {"rank": 3, "expected": (2, 4)}, ascend(new=f16(3, 2, 3))),
        ("rank_too_low", "cache", {"rank": 1, "min": 2}, scatter(f32(4), f32(4))),
        ("rank_mismatch", "update", {"cache": 3, "update": 2}, scatter(f32(1, 4, 2), f32(1, 2))),
        (
            "dimension_mismatch",
            "update",
            {"dimension": 2, "expected": 2, "got": 3},
            scatter(f32(1, 4, 2), f32(1, 1, 3)),
        ),
        ("hidden_size", "newKv", {"heads": 2, "head_size": 2, "hidden": 6}, ascend(new=f16(2, 1, 2, 2))),
        (
            "batch_too_large",
            "update",
            {"cache": 1, "update": 2},
            tensorrt(f32(1, 1, 4, 2), f32(2, 1, 1, 2), [0, 0]),
        ),
        (
            "update_longer_than_cache",
            "update",
            {"rows": 5, "capacity": 4},
            scatter(f32(1, 4, 2), f32(1, 5, 2)),
        ),
        ("update_longer_than_cache", "newKv", {"rows": 5, "capacity": 4}, ascend(new=f16(2, 5, 2, 3))),
        ("too_large", "cache", {}, too_large),
    ],
    errors.OptionError: [
        ("axis_out_of_range", "axis", {"axis": 3, "rank": 3}, scatter(f32(1, 4, 2), f32(1, 1, 2), axis=3)),
        ("axis_is_batch", "axis", {"axis": -3, "rank": 3}, scatter(f32(1, 4, 2), f32(1, 1, 2), axis=-3)),
    ],
    errors.ArrayError: [
        ("cache_overlaps_itself", "cache", {}, self_overlapping()),
        ("too_many_loops", None, {"loops": 6}, entangled()),
        ("overlap", "cache", {"with_": "update", "pair": 0, "with_pair": 0}, overlapping()),
        (
            "address_space",
            "update",
            {
                "pair": 0,
                "address": (1 << 64) + BELOW_ZERO.__array_interface__["data"][0] - (1 << 60),
                "len": (1 << 60) + 4,
            },
            scatter(f32(1, 4, 1), BELOW_ZERO, [0]),
        ),
    ],
    errors.PositionError: [
        (
            "list_length",
            "write_indices",
            {"got": 2, "expected": 1},
            scatter(f32(1, 4, 2), f32(1, 1, 2), [0, 0]),
        ),
        ("list_length", "layerId", {"got": 2, "expected": 1}, ascend([0, 1])),
        (
            "negative_start",
            "write_indices",
            {"index": 1, "value": -1},
            scatter(f32(2, 4, 2), f32(2, 1, 2), [0, -1]),
        ),
        (
            "start_out_of_range",
            "writeIndices",
            {"index": 1, "value": 3, "rows": 2, "capacity": 4},
            tensorrt(f32(2, 1, 4, 2), f32(2, 1, 2, 2), [0, 3]),
        ),
        (
            "end_out_of_range",
            "tokenOffset",
            {"index": 0, "value": 1, "min": 2, "max": 4},
            ascend(1, [1, 1]),
        ),
        (
            "length_out_of_range",
            "lengths",
            {"index": 0, "value": 3, "min": 0, "max": 2},
            scatter(f32(1, 4, 2), f32(1, 2, 2), [0], lengths=[3]),
        ),
        ("cumulative_start", "updateLengths", {"value": 1}, packed([1, 2])),
        ("cumulative_order", "updateLengths", {"index": 2, "value": 1, "previous": 2}, packed([0, 2, 1])),
        ("cumulative_length", "updateLengths", {"index": 0, "rows": 5, "capacity": 4}, packed([0, 5, 6])),
        ("token_sum", "seqLen", {"got": 2, "tokens": 3}, ascend(1, [1, 1], [1, 1])),
        ("layer_out_of_range", "layerId", {"value": 2, "layers": 2}, ascend(2)),
        (
            "slot_out_of_range",
            "slot_mapping",
            {"index": 1, "value": 4, "slots": 4},
            in_blocks([0, 4]),
        ),
        ("negative_start", "slot_mapping", {"index": 0, "value": -1}, in_blocks([-1, 4])),
        ("duplicate_slot", "slot_mapping", {"index": 2, "value": 3, "earlier": 0}, in_blocks([3, 1, 3])),
        (
            "block_out_of_range",
            "block_tables",
            {"sample": 1, "index": 1, "value": 7, "blocks": 4},
            lambda: paged.slot_mapping(np.array([[0, 9], [3, 7]]), [2, 3], 1, block_size=2, num_blocks=4),
        ),
        (
            "invalid_position",
            "length",
            {"value": 2, "rows": 3, "index": 1},
            lambda: positions.start_from_length_after([3, 2], 3),
        ),
    ],
}
ROWS = [(of, *row) for of, rows in CAUSED.items() for row in rows]

# Errors that no call from Python can cause, each with the reason.
UNREACHABLE = {
    "unknown_mode": "`options.rs` refuses other modes, with the words that may stand there",
    "stride_count": "shape and strides come from one array",
    "before_buffer": "`Form::layout` leaves the room that negative strides need",
    "buffer_length": "`write.rs` asks the core for the length of the buffers that it gives it",
    "null_buffer": "arrays of more than no bytes have an address",
    "element_width": "`object_array.rs` moves strings",
    "in_place_only": "no function asks for the functional form of a paged write",
    "index_too_large": "`indices.rs` gives the core signed numbers",
}


@pytest.mark.parametrize(("of", "kind", "argument", "fields", "call"), ROWS)
def test_an_error_has_a_class_a_kind_and_fields(
    of: type[errors.Error],
    kind: str,
    argument: str | None,
    fields: dict[str, Any],
    call: Callable[[], object],
) -> None:
    error = refused(kind, argument, call)
    assert (type(error), error.fields) == (of, fields)
    declared = get_type_hints(of)
    for name, value in fields.items():
        assert getattr(error, name) == value
        assert name in declared, "type checkers refuse it"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again)) == (of, error.args, vars(error))


def test_every_error_of_the_core_is_mapped_with_its_fields() -> None:
    """A test of the core compares the fields of each kind with its variant."""
    assert len(KINDS) == len(error_kinds()) > 30
    assert all(name.isidentifier() and name.islower() for name in KINDS)
    for of, kind, argument, fields, _ in ROWS:
        assert KINDS[kind][0] is of
        assert KINDS[kind][1] - {"accepted"} == fields.keys() - ADDED.get((kind, argument), set())


def test_every_kind_is_caused_or_unreachable() -> None:
    caused = {kind for _, kind, *_ in ROWS}
    assert not caused & UNREACHABLE.keys()
    assert caused | UNREACHABLE.keys() == KINDS.keys()


def test_the_message_is_the_cores() -> None:
    with pytest.raises(errors.PositionError) as caught:
        scatter(f32(1, 4096, 2), f32(1, 2, 2), [4095])()
    want = "write_indices[0] = 4095: 4095 + 2 rows exceed the cache's capacity of 4096"
    assert caught.value.args == (want,)


@pytest.mark.parametrize(
    ("of", "bases"),
    [
        (errors.Error, {Exception}),
        (errors.ShapeError, {ValueError}),
        (errors.OptionError, {ValueError}),
        (errors.ElementTypeError, {TypeError}),
        (errors.PositionError, {IndexError}),
        (errors.ArrayError, {ValueError}),
        (errors.DeviceError, {errors.ArrayError, ValueError}),
        (errors.SessionError, {RuntimeError}),
        (errors.FileError, {OSError}),
        (errors.ModelError, {ValueError}),
        (errors.CudaError, {RuntimeError}),
    ],
)
def test_python_knows_what_kind_of_error_it_is(of: type[errors.Error], bases: set[type]) -> None:
    assert issubclass(of, errors.Error)
    assert all(issubclass(of, base) for base in bases)
    assert getattr(kvscatter, of.__name__) is of


def made() -> errors.PositionError:
    error = errors.PositionError(
        "write_indices[3] = 9: too far", "start_out_of_range", "write_indices", index=3
    )
    vars(error)["__notes__"] = ["noted"]
    return error


PICKLED = [
    lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: error, *PICKLED])
def test_an_error_can_be_copied_and_pickled(again: Callable[[errors.Error], errors.Error]) -> None:
    error = again(made())
    assert repr(error) == (
        "PositionError('write_indices[3] = 9: too far', "
        "kind='start_out_of_range', argument='write_indices', index=3)"
    )
    assert str(error) == "write_indices[3] = 9: too far"
    assert (error.fields, vars(error)) == ({"index": 3}, vars(made()))


def test_an_error_leaves_a_process() -> None:
    arguments = (f32(1, 4, 2), f32(1, 1, 2), [4])
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(errors.PositionError) as caught:
        pool.apply(kvscatter.tensor_scatter_, arguments)
    assert (caught.value.kind, caught.value.value, caught.value.capacity) == ("start_out_of_range", 4, 4)


def every_class(of: type[errors.Error] = errors.Error) -> list[type[errors.Error]]:
    return [of, *(more for below in of.__subclasses__() for more in every_class(below))]


CLASSES = [of for of in every_class() if of.__module__.startswith("kvscatter")]


@pytest.mark.parametrize("of", CLASSES)
def test_every_declared_field_is_there(of: type[errors.Error]) -> None:
    """Errors that a program makes have every field. Their copies have them too, even in another process."""
    assert {errors.Error, errors.ShapeError, Refused, ModelError} <= set(CLASSES)
    made = of("what is wrong")
    copies = (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)))
    assert [str(error) for error in copies] == ["what is wrong"] * 3
    for error in (made, *copies, of()):
        assert (type(error), error.kind, error.fields) == (of, "unspecified", {})
        for name in get_type_hints(of).keys() - {"kind"}:
            assert getattr(error, name) is None, name
    assert (str(made), made.args, str(of())) == ("what is wrong", ("what is wrong",), "")
    assert repr(made) == f"{of.__name__}('what is wrong', kind='unspecified', argument=None)"


def test_every_field_that_is_given_is_declared() -> None:
    """Checks the source of the compiled module, because type checkers report a field that no class
    declares."""
    declared = set().union(*(get_type_hints(of) for of in CLASSES))
    patterns = {
        "failure.rs": r"(\w+)(?=(?:, \w+)*\],\n)",
        "reference.rs": r'\("(\w+)", (?:Name|number|size)\(',
        "model.rs": r'set_item\("(\w+)"',
        "session_error.rs": r'[\[ ]\("(\w+)", [^"]',
    }
    given = {
        file: set(re.findall(pattern, (SOURCE / file).read_text())) for file, pattern in patterns.items()
    }
    # Only the message contains the types that an operator accepts.
    given["the core"] = set().union(*(fields for _, fields in KINDS.values())) - {"accepted"}
    assert all(len(names) > 3 for names in given.values()), given
    # The oracle's `argument` becomes the error's `argument`.
    assert set().union(*given.values()) - declared == set()


def test_a_field_that_a_kind_does_not_have_is_none() -> None:
    error = made()
    assert (error.index, error.capacity) == (3, None)
    with pytest.raises(AttributeError):
        _ = error.capacities  # type: ignore[attr-defined]
