"""Tests the whole run with substitutes for PyTorch's CUDA functions. The rest needs a device."""

import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from test_one_case import slices

import bench_gpu
import choices
import one_case
import ours
import place
import report
import timing
from cases import SMALL
from memory import Memory
from names import AGAIN, NO_STATUS, OURS, SKIP_ALL
from results import Run
from way import Role, Way


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "Event") -> float:
        return (other.time - self.time) * 1e3


class Ours:
    def __init__(self, library: object, memory: Memory) -> None:
        self.write = partial(slices, memory)

    def ways(self) -> list[Way]:
        roles = {OURS: Role.OURS, AGAIN: Role.OURS, NO_STATUS: Role.VARIANT, SKIP_ALL: Role.VARIANT}
        return [Way(name, role, self.write) for name, role in roles.items()]

    def ways_of_choices(self) -> list[Way]:
        roles = {OURS: Role.OURS, AGAIN: Role.OURS, "small_table_jobs 2 → 0": Role.VARIANT}
        return [Way(name, role, self.write) for name, role in roles.items()]

    def host_time(self) -> float:
        return 2.0

    def close(self) -> None:
        pass


class Peers:
    """A module with a right way, a way that leaves a write out, and a way that fails."""

    __name__ = "peers.with_them"

    @staticmethod
    def ways(memory: Memory) -> list[Way]:
        def forgets(number: int) -> None:
            if number:
                slices(memory, number)

        def fails(number: int) -> None:
            raise ValueError("no kernel\nfor this")

        return [
            Way("right", Role.PEER, partial(slices, memory)),
            Way("forgets", Role.PEER, forgets),
            Way("fails", Role.PEER, fails),
        ]


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    properties = SimpleNamespace(L2_cache_size=1 << 12, total_memory=1 << 25)
    cuda = {
        "is_available": lambda: True,
        "get_device_name": lambda: "a device",
        "get_device_properties": lambda device: properties,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "Event": Event,
    }
    for name, part in cuda.items():
        monkeypatch.setattr(torch.cuda, name, part)

    def captured(clocks: timing.Clocks, way: Way, writes: int) -> object:
        return SimpleNamespace(replay=lambda: [way.write(number) for number in range(writes)])

    monkeypatch.setattr(timing, "Gpu", place.Cpu)
    monkeypatch.setattr(timing, "COPIED", 1 << 16)
    monkeypatch.setattr(timing.Clocks, "captured", captured)
    monkeypatch.setattr(one_case, "Ours", Ours)
    monkeypatch.setattr(one_case, "check_contract", lambda library, memory: None)
    monkeypatch.setattr(one_case, "installed", lambda skipped: [Peers])
    monkeypatch.setattr(ours, "Library", lambda path: None)
    yield


@pytest.mark.usefixtures("no_device")
def test_everyone_who_is_right_is_timed() -> None:
    run = bench_gpu.measure(SMALL[:2], bench_gpu.PAGE, 1000)
    assert [result.case for result in run.results] == SMALL[:2]
    for result in run.results:
        assert set(result.samples) == {OURS, AGAIN, NO_STATUS, SKIP_ALL, "right"}
        assert result.peers == ["right"]
        assert result.absent["fails"] == "no kernel for this"
        assert "forgets: tensor 0" in result.absent["forgets"]
        for samples in result.samples.values():
            assert len(samples.eager) == len(samples.replayed) == len(samples.host) == timing.ROUNDS
            assert all(value > 0 for value in (*samples.eager, *samples.replayed, *samples.host))
        assert result.host_in_rust == [2.0] * one_case.HOST_ROUNDS
    assert Run.of_json(run.as_json()) == run
    assert "| decode, B 3, ragged |" in report.page(run)


@pytest.mark.usefixtures("no_device")
def test_choices_are_timed_beside_the_default_and_nobody_else() -> None:
    run = bench_gpu.measure(SMALL[:1], bench_gpu.PAGE, 1000, of_choices=True)
    [result] = run.results
    assert set(result.samples) == {OURS, AGAIN, "small_table_jobs 2 → 0"}
    assert (result.peers, run.skipped) == ([], {})
    assert "small_table_jobs 2 → 0" in choices.page(run)


@pytest.mark.usefixtures("no_device")
def test_ours_must_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ours, "ways", lambda self: [Way(OURS, Role.OURS, lambda number: None)])
    with pytest.raises(one_case.WrongResult, match="kvscatter: tensor 0"):
        bench_gpu.measure(SMALL[:1], bench_gpu.PAGE, 1000)


@pytest.mark.usefixtures("no_device")
def test_cases_for_which_there_is_no_time_are_named() -> None:
    run = bench_gpu.measure(SMALL[:2], bench_gpu.PAGE, 1)
    assert run.results == []
    assert [run.skipped[case.label] for case in SMALL[:2]] == ["no time left"] * 2
