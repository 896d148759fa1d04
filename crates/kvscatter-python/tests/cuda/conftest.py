"""These tests need the driver of kvscatter-cuda's tests, with which `test_cuda.py` runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if "KVSCATTER_CUDA_DRIVER" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
else:
    import device

    @pytest.fixture(autouse=True)
    def _device() -> Iterator[None]:
        """A device that is well before a test and after it."""
        device.choose()
        yield
        device.call("cuCtxSynchronize")
