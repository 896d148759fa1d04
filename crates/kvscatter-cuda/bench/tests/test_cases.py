import pytest

from cases import CASES, DECODE, JOBS, PREFILL, SMALL, Case, cache_sets, update_sets, writes_of

LEVEL = 60 << 20  # an H200's last cache level
BUDGET = 16 << 30

of_each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


def test_the_cases_have_the_required_sizes() -> None:
    assert {case.batch for case in DECODE} == {1, 8, 64, 256}
    assert {case.rows for case in PREFILL} == {512, 4096}
    assert {case.tensors for case in JOBS} == {64}
    assert {case.is_ragged for case in CASES} == {case.is_functional for case in CASES} == {False, True}
    assert len({case.label for case in CASES}) == len(CASES)


@of_each_case
def test_the_caches_that_take_turns_do_not_fit_the_last_cache_level(case: Case) -> None:
    sets = cache_sets(case, LEVEL, BUDGET)
    assert sets * case.cache_bytes >= 4 * LEVEL
    assert sets * case.cache_bytes <= BUDGET
    assert update_sets(case, BUDGET) * case.update_bytes <= BUDGET


@of_each_case
def test_every_start_is_in_range_and_one_reaches_the_end(case: Case) -> None:
    sets = cache_sets(case, LEVEL, BUDGET)
    writes = writes_of(case, sets, update_sets(case, BUDGET))
    assert len(writes) == case.writes
    starts = [start for write in writes for start in write.starts]
    assert min(starts) >= 0
    assert max(starts) == case.capacity - case.rows
    assert {write.caches for write in writes} == set(range(sets))
    assert all(len(write.starts) == case.batch for write in writes)


@pytest.mark.parametrize("case", DECODE, ids=lambda case: case.label)
def test_no_two_decode_writes_go_to_one_row(case: Case) -> None:
    writes = writes_of(case, cache_sets(case, LEVEL, BUDGET), 1)
    rows = [(write.caches, sample, start) for write in writes for sample, start in enumerate(write.starts)]
    assert len(set(rows)) == len(rows)


@of_each_case
def test_starts_are_ragged_where_it_says_so(case: Case) -> None:
    writes = writes_of(case, 2, 1)
    assert any(len(set(write.starts)) > 1 for write in writes) == case.is_ragged


def test_small_cases_are_small() -> None:
    assert all(case.cache_bytes <= 1 << 21 and case.writes <= 5 for case in SMALL)
