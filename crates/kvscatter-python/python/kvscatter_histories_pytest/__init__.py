"""The pytest plugin of kvscatter: the fixture ``histories``. It imports kvscatter only in a test that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvscatter.histories._pytest import Histories


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    """Runs histories on an engine: ``histories.check(MyEngine, minutes=0.5)``."""
    from kvscatter.histories._pytest import Histories

    return Histories(tmp_path)
