"""Runs kernels with planted faults, each of which must be detected and named."""

from __future__ import annotations

import html
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kvscatter
from kvscatter import reference, testing
from kvscatter._dtypes import ONNX_NAMES, dtype_named
from kvscatter.testing import Failure, Report, Row
from kvscatter.testing._compare import KEPT, WRITTEN


def plain(past_cache: Any, update: Any, write_indices: Any, *, axis: int, mode: str) -> Any:
    """A kernel with slices, as users write it."""
    rank = past_cache.ndim
    if mode not in {"linear", "circular"} or not -rank <= axis < rank or axis % rank == 0:
        raise ValueError("attributes")
    present = past_cache.copy()
    slots, rows = np.moveaxis(present, axis, 1), np.moveaxis(update, axis, 1)
    starts = np.zeros(len(slots), np.int64) if write_indices is None else write_indices
    length = rows.shape[1]
    if rows.shape[2:] != slots.shape[2:] or len(rows) != len(slots) or len(starts) != len(slots):
        raise ValueError("shapes")
    if past_cache.dtype != update.dtype or length > slots.shape[1]:
        raise ValueError("types or lengths")
    for sample, start in enumerate(starts.tolist()):
        if mode == "circular":
            to = [(start + row) % slots.shape[1] for row in range(length)]
        elif 0 <= start <= slots.shape[1] - length:
            to = list(range(start, start + length))
        else:
            raise ValueError("positions")
        slots[sample, to] = rows[sample]
    return present


def test_a_right_kernel_passes() -> None:
    report = testing.check(plain)
    assert report.passed and report.total == 1000 and report.failures == () and report.kinds == {}
    report.assert_passed()
    assert str(report) == "1000 of 1000 cases passed"


@pytest.mark.parametrize(
    ("operator", "extensions"),
    [
        ("tensor_scatter", ("lengths", "out_of_range", "negative_index")),
        ("kv_cache_update", ("lengths", "out_of_range")),
        ("kv_cache_operation", ("lengths", "out_of_range")),
    ],
)
def test_the_reference_and_the_package_pass(operator: Any, extensions: Any) -> None:
    options = {"operator": operator, "extensions": extensions, "n": 2000, "seed": 3}
    testing.check(getattr(reference, operator), **options).assert_passed()
    testing.check(getattr(kvscatter, f"{operator}_"), in_place=True, **options).assert_passed()


def only(report: Report, name: str) -> list[Failure]:
    """Returns the failures of one idea."""
    found = [failure for failure in report.failures if name in failure.case.name]
    assert found, report
    return found


def test_off_by_one() -> None:
    def off_by_one(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        at = np.zeros(len(past), np.int64) if at is None else at
        return plain(past, update, at + 1, axis=axis, mode=mode)

    report = testing.check(off_by_one, dtypes=["float32"])
    assert not report.passed
    for failure in only(report, "ring_heads_over_capacity"):
        assert failure.lanes is not None
        if failure.case.cache.shape[2] > 2:  # with two slots, the next slot is also the previous one
            assert failure.hint is not None and "every row is 1 slot" in failure.hint
            wrong = failure.lanes.wrong[0]
            assert {slot.kind for slot in failure.lanes.wrong} <= {"not_written", "overwritten", "wrong_row"}
            assert wrong.expected is None or wrong.expected.sample == wrong.lane
    assert "every row is 1 slot" in str(report)


def test_clamped_index() -> None:
    def clamped(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        rows, capacity = update.shape[axis], past.shape[axis]
        if at is not None and mode == "linear":
            at = np.clip(at, 0, max(capacity - rows, 0))
        return plain(past, update, at, axis=axis, mode=mode)

    report = testing.check(clamped)
    assert set(report.kinds) == {"not_refused"}
    (problem,) = only(report, "refused_out_of_range")[0].problems
    assert problem.text.startswith("accepted what must be refused: out of range: sample = ")
    testing.check(clamped, refusals=False).assert_passed()


def test_modulo_on_the_whole_index_tuple() -> None:
    def whole_tuple(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        if mode == "linear":
            return plain(past, update, at, axis=axis, mode=mode)
        present, capacity = past.copy(), past.shape[axis]
        at = np.zeros(len(past), np.int64) if at is None else at
        for index in np.ndindex(*update.shape):
            prefix, rest = index[: axis % past.ndim], index[axis % past.ndim + 1 :]
            row = index[axis % past.ndim]
            to = tuple(place % capacity for place in (*prefix, int(at[index[0]]) + row))
            present[(*to, *rest)] = update[index]
        return present

    report = testing.check(whole_tuple, dtypes=["int64"])
    failures = only(report, "ring_batch_over_capacity")
    foreign = [
        slot
        for failure in failures
        if failure.lanes
        for slot in failure.lanes.wrong
        if slot.found and slot.found.sample != slot.lane
    ]
    assert foreign and any("of sample" in str(failure) for failure in failures)
    assert only(report, "ring_heads_over_capacity")


def test_a_ring_that_does_not_wrap() -> None:
    def cut_off(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        present = plain(past, update, at, axis=axis, mode=mode)
        if mode == "linear" or at is None:
            return present
        capacity = past.shape[axis]
        for sample, start in enumerate(at.tolist()):
            wrapped = max(0, start % max(capacity, 1) + update.shape[axis] - capacity)
            kept = np.moveaxis(past[sample], axis % past.ndim - 1, 0)[:wrapped]
            np.moveaxis(present[sample], axis % past.ndim - 1, 0)[:wrapped] = kept
        return present

    report = testing.check(cut_off, dtypes=["uint32"])
    for failure in only(report, "ring_wraps"):
        assert failure.lanes is not None
        assert {slot.kind for slot in failure.lanes.wrong} == {"not_written"}
        first = failure.lanes.wrong[0]
        assert first.slot == 0 and first.expected is not None and first.expected.row > 0
        assert failure.lanes.marks[first.lane][0] == "○"


def test_swapped_samples() -> None:
    def swapped(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        return plain(past, update[::-1], at, axis=axis, mode=mode)

    report = testing.check(swapped, dtypes=["int32"], refusals=False)
    assert set(report.kinds) == {"wrong_row"}
    even = [failure for failure in report.failures if failure.case.cache.shape[0] == 2]
    assert even
    for failure in even:
        assert failure.lanes is not None
        assert all(
            slot.found == Row(1 - slot.lane, slot.expected.row)
            for slot in failure.lanes.wrong
            if slot.expected
        )
        assert failure.hint == "rows are in the wrong samples"


def test_a_lost_dtype_a_lost_dimension_and_nothing_at_all() -> None:
    def widened(*arguments: Any, **options: Any) -> Any:
        present = plain(*arguments, **options)
        return present.astype(np.float64) if present.dtype == np.float32 else present

    report = testing.check(widened)
    assert set(report.kinds) == {"wrong_dtype"}
    assert report.failures[0].problems[0].text == "returned float64, must be float32"

    report = testing.check(lambda *a, **o: plain(*a, **o)[None])
    assert set(report.kinds) == {"wrong_shape"}
    report = testing.check(lambda *a, **o: None, refusals=False)
    assert report.kinds == {"no_array": report.total}


def test_in_place_where_it_must_be_functional_and_the_other_way_round() -> None:
    def in_place(past: Any, *arguments: Any, **options: Any) -> Any:
        past[...] = plain(past, *arguments, **options)
        return past

    report = testing.check(in_place)
    assert set(report.kinds) == {"argument_changed"}
    assert report.failures[0].problems[0].text == "past_cache was changed"
    testing.check(in_place, in_place=True).assert_passed()

    report = testing.check(plain, in_place=True)
    assert set(report.kinds) == {"not_written"}


def test_an_update_that_is_spoilt_and_a_cache_that_changes_before_the_refusal() -> None:
    def spoils(past: Any, update: Any, at: Any, **options: Any) -> Any:
        present = plain(past, update, at, **options)
        update[...] = update.flat[0] if update.size else 0
        return present

    assert set(testing.check(spoils, dtypes=["int16"]).kinds) == {"argument_changed"}

    def half_written(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> None:
        for sample in range(len(past)):
            one = slice(sample, sample + 1)
            start = None if at is None else at[one]
            past[one] = plain(past[one], update[one], start, axis=axis, mode=mode)
        plain(past, update, at, axis=axis, mode=mode)

    report = testing.check(half_written, in_place=True)
    failure = only(report, "refused_negative")[0]
    assert [problem.text for problem in failure.problems] == [
        "past_cache was changed before the call was refused"
    ]


def test_an_exception_of_the_kernel_is_in_the_report() -> None:
    def no_rings(*arguments: Any, axis: int, mode: str) -> Any:
        if mode == "circular":
            raise NotImplementedError("no rings\nat all")
        return plain(*arguments, axis=axis, mode=mode)

    report = testing.check(no_rings)
    assert set(report.kinds) == {"raised"}
    failure = report.failures[0]
    assert isinstance(failure.exception, NotImplementedError)
    assert failure.problems[0].text == "raised NotImplementedError: no rings"


def test_rows_that_are_neither() -> None:
    def mixed(*arguments: Any, **options: Any) -> Any:
        present = plain(*arguments, **options)
        return present[..., ::-1].copy() if present.ndim == 5 else present

    report = testing.check(mixed, dtypes=["complex128"], n=200)
    torn = [failure for failure in report.failures if failure.lanes and "?" in "".join(failure.lanes.marks)]
    for failure in torn:
        assert failure.lanes is not None
        for slot in failure.lanes.wrong:
            if slot.kind == "garbled":
                assert slot.elements == failure.case.cache[0].size // failure.case.cache.shape[axis(failure)]
                assert slot.right + slot.past < slot.elements
                assert f"of {slot.elements} elements " in str(failure)
    assert torn


def axis(failure: Failure) -> int:
    place: int = failure.case.arguments["axis"]
    return place


def test_elements_that_stay_behind_are_counted() -> None:
    def half(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        present = plain(past, update, at, axis=axis, mode=mode)
        if present.ndim == 4 and axis % 4 == 2 and present.shape[1] == 2:
            present[:, 1] = past[:, 1]
        return present

    report = testing.check(half, dtypes=["uint64"])
    assert set(report.kinds) == {"garbled"}
    for failure in report.failures:
        assert failure.lanes is not None
        assert all(slot.right == slot.past == slot.elements // 2 for slot in failure.lanes.wrong)
        n = failure.lanes.wrong[0].elements
        were = "is" if n == 2 else "are"
        assert f"of {n} elements {n // 2} {were} right, {n // 2} {were} not written" in str(failure)


@pytest.mark.parametrize("operator", ["kv_cache_update", "kv_cache_operation"])
def test_faults_of_the_other_operators_are_named_too(operator: Any) -> None:
    right = getattr(reference, operator)

    def swapped(*arguments: Any) -> Any:
        values = list(arguments)
        values[1] = values[1][::-1]
        return right(*values)

    report = testing.check(swapped, operator=operator)
    assert set(report.kinds) == {"wrong_row"}
    text = str(report)
    assert "writeIndices" in text if operator == "kv_cache_update" else "layer, sample" in text


def example() -> Report:
    def shifted(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        if mode == "circular" and at is not None:
            at = (at % max(1, past.shape[axis])) + 1
        return plain(past, update, at, axis=axis, mode=mode)

    return testing.check(shifted, dtypes=["float16"], n=60)


def test_the_picture_as_text() -> None:
    report = example()
    with pytest.raises(AssertionError) as caught:
        report.assert_passed()
    text = str(caught.value)
    assert text == str(report)
    assert repr(report) == f"<kvscatter.testing.Report: {text.splitlines()[0]}>"
    first = report.failures[0]
    assert first.lanes is not None
    drawn = str(first).splitlines()
    assert drawn[0] == first.case.name
    assert drawn[1].startswith(f"  float16, past_cache {first.case.cache.shape}, update ")
    assert all(mark in text for mark in first.lanes.marks)
    assert f"{KEPT} kept  {WRITTEN} written  ○ not written  ! written and must not be" in text
    glyphs = set("".join(first.lanes.marks))
    assert glyphs <= {KEPT, WRITTEN, "○", "!", "×", "?"} and glyphs & {"○", "!", "×"}


def test_a_notebook_shows_the_text() -> None:
    report = example()
    assert html.unescape(report._repr_html_()) == f"<pre>{report}</pre>"


def test_cases_are_the_same_for_a_seed_and_cover_every_type() -> None:
    first, again = (list(testing.cases(5, 300)) for _ in range(2))
    other = list(testing.cases(6, 300))
    assert [case.name for case in first] == [case.name for case in again]
    assert all(
        a.cache.tobytes() == b.cache.tobytes()
        for a, b in zip(first, again, strict=True)
        if a.cache.dtype != object
    )
    assert [case.cache.shape for case in first] != [case.cache.shape for case in other]
    assert {case.operator for case in first} == {"tensor_scatter", "kv_cache_update", "kv_cache_operation"}
    of_all = list(testing.cases(0, 700, operators=["tensor_scatter"]))
    assert {case.cache.dtype for case in of_all} == {dtype_named(name) for name in ONNX_NAMES}
    assert any(
        case.cache.shape[0] > case.cache.shape[case.arguments["axis"]]
        for case in of_all
        if case.expected is not None
    )
    assert any(0 in case.cache.shape for case in of_all)
    assert all(
        isinstance(text, str) for case in of_all if case.cache.dtype == object for text in case.cache.flat
    )


def test_plain_cases_say_nothing_that_the_document_does_not() -> None:
    for case in testing.cases(1, 500, operators=["tensor_scatter"]):
        assert list(case.arguments) == ["past_cache", "update", "write_indices", "axis", "mode"]
        assert (case.expected is None) == (case.refusal is not None) == (case.origins is None)
    used = set[str]()
    for case in testing.cases(1, 2000, extensions=["lengths"]):
        used |= set(case.arguments)
    assert "lengths" in used and not used & {"out_of_range", "negative_index"}


def test_a_case_agrees_with_the_reference() -> None:
    for case in testing.cases(9, 1500, extensions=("lengths", "out_of_range", "negative_index")):
        run = getattr(reference, case.operator)
        if case.refusal is None:
            assert case.expected is not None
            present, skipped = reference.answer(run, **case.arguments)
            assert present.tobytes() == case.expected.tobytes() or present.dtype == object
            assert present.tolist() == case.expected.tolist() or present.dtype != object
            assert skipped == case.skipped
        else:
            with pytest.raises(reference.Refused) as caught:
                run(**case.arguments)
            assert (caught.value.rule, caught.value.fields) == (case.refusal.rule, case.refusal.fields)


def test_choices_that_there_are_none_of() -> None:
    for options in (
        {"operators": ["scatter"]},
        {"operators": "tensor_scatter"},
        {"extensions": ["length"]},
        {"dtypes": ["datetime64[s]"]},
        {"dtypes": "float32"},
        {"n": -1},
        {"seed": -1},
        {"seed": 2**64},
    ):
        with pytest.raises(kvscatter.OptionError) as caught:
            testing.cases(**{"seed": 0, "n": 1, **options})
        assert caught.value.argument in options
    with pytest.raises(kvscatter.OptionError) as caught:
        list(testing.cases(0, 1, operators=["kv_cache_operation"], dtypes=[]))
    assert caught.value.kind == "no_such_case"
    narrow = list(testing.cases(0, 50, dtypes=[np.float16]))
    assert len(narrow) == 50 and {case.cache.dtype for case in narrow} == {np.dtype(np.float16)}


def test_without_ml_dtypes_the_report_says_what_is_left_out() -> None:
    program = """
import sys
sys.modules["ml_dtypes"] = None
from kvscatter import reference, testing
report = testing.check(reference.tensor_scatter, n=50)
assert report.passed and "bfloat16" in report.left_out and len(report.left_out) == 9, report.left_out
print(report)
try:
    testing.check(reference.tensor_scatter, dtypes=["bfloat16"])
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "left out: bfloat16, " in done.stdout
    assert done.stdout.count("pip install kvscatter[testing]") == 2
