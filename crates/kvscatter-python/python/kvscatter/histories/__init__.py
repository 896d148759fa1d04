"""Finds the shortest history of a KV cache that an engine computes wrongly.

Cached decoding must equal computing again, after every history of the cache. An :class:`Engine` describes an
engine, and :func:`check` runs random histories on it: prompts, steps, rewinds, copies, batches that grow and shrink,
saved samples. A history that fails is shortened as far as possible. The extra ``histories`` installs what it needs.
"""

from kvscatter.histories._check import check
from kvscatter.histories._engine import Engine, EngineError, Refused
from kvscatter.histories._history import History
from kvscatter.histories._judge import Failed
from kvscatter.histories._process import ProcessEngine
from kvscatter.histories._replay import replay
from kvscatter.histories._report import Report

__all__ = [
    "Engine",
    "EngineError",
    "Failed",
    "History",
    "ProcessEngine",
    "Refused",
    "Report",
    "check",
    "replay",
]


def __dir__() -> list[str]:
    return __all__
