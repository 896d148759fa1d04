"""These tests need a driver: `test_cuda.py` runs them with that of kvscatter-cuda's tests, `cargo xtask cuda-gpu` with
that of the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

if "KVSCATTER_CUDA_DRIVER" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
else:
    import device
    from played import Torch

    @pytest.fixture(autouse=True)
    def _device() -> Iterator[None]:
        """A device that is well before a test and after it."""
        device.choose()
        yield
        device.call("cuCtxSynchronize")

    @pytest.fixture
    def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
        """PyTorch itself on a device, otherwise a played one."""
        if not device.IS_FAKE:
            cuda = pytest.importorskip("torch.cuda", reason="this Python has no PyTorch")
            return sys.modules["torch"] if cuda.is_available() else pytest.skip("PyTorch finds no device")
        modules = Torch().modules()
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return modules["torch"]
