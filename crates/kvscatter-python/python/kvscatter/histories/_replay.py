"""Runs one history again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kvscatter.histories import _judge
from kvscatter.histories._engine import Engine
from kvscatter.histories._history import History
from kvscatter.histories._judge import Judge, Reference
from kvscatter.histories._report import Report


def replay(make: Callable[[], Engine], history: History | str | Path) -> Report:
    """Runs a history on an engine, such as one that failed in another version.

    Args:
        make: The class of an adapter, or a function that makes one. It is called twice.
        history: The history, or a file that ``History.save`` or a report has written.

    Raises:
        ValueError: The file has no history.
        EngineError: The history is not one of this engine, or becomes impossible because the engine refuses another
            operation than it did before.
    """
    if not isinstance(history, History):
        history = History.load(history)
    begun = time.monotonic()
    engine, other = make(), make()
    judge = Judge(engine, Reference(other))
    failed = _judge.run(judge, history)
    return Report(
        histories=1,
        done=dict(judge.done),
        refused=dict(judge.refused),
        longest=judge.longest,
        seconds=time.monotonic() - begun,
        seed=None,
        failed=failed,
        is_repeatable=True,
        adapter=engine,
    )
