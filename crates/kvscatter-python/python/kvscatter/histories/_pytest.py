"""The object that the pytest fixture ``histories`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kvscatter.histories._check import check
from kvscatter.histories._engine import Engine
from kvscatter.histories._history import History
from kvscatter.histories._replay import replay
from kvscatter.histories._report import Report


class Histories:
    """Runs histories in a test. If a history fails, the test fails and its files are written to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(
        self,
        make: Callable[[], Engine],
        *,
        minutes: float = 1.0,
        histories: int | None = None,
        seed: int = 0,
        without: Iterable[str] = (),
    ) -> Report:
        """Runs :func:`kvscatter.histories.check`.

        Raises:
            AssertionError: A history failed. The message has the shortest one and names its files.
        """
        return self._passed(check(make, minutes=minutes, histories=histories, seed=seed, without=without))

    def replay(self, make: Callable[[], Engine], history: History | str | Path) -> Report:
        """Runs :func:`kvscatter.histories.replay`.

        Raises:
            AssertionError: The history failed.
        """
        return self._passed(replay(make, history))

    def _passed(self, report: Report) -> Report:
        __tracebackhide__ = True
        if report.passed:
            return report
        files = {"failure.json": report.json(), "failure.html": report.html()}
        for name, text in files.items():
            (self._folder / name).write_text(text)
        raise AssertionError(f"{report}\n\nfiles in {self._folder}: {', '.join(files)}")
