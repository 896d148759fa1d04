"""First calls that a signal handler or a finalizer interrupts, and that it repeats."""

from __future__ import annotations

import pytest

from support import first_calls

NAMES = [
    *("subclass", "sequence", "index", "refused", "blocks", "segments", "driver"),
    *("model", "open", "memory", "generate", "register"),
]


@pytest.mark.parametrize("by", ["signal", "finalizer"])
def test_a_first_call_that_is_repeated_while_it_runs_does_not_wait_for_itself(by: str) -> None:
    first_calls(by, *NAMES)
