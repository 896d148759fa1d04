"""These tests need a driver. `test_cuda.py` runs them with the simulated driver of kvscatter-cuda, and
`cargo xtask cuda-gpu` runs them with the machine's driver.
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
    from simulated import Torch

    @pytest.fixture(autouse=True)
    def _device() -> Iterator[None]:
        """Checks that the device works before and after each test."""
        device.choose()
        yield
        device.call("cuCtxSynchronize")

    @pytest.fixture
    def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
        """Returns PyTorch itself if it has a device, and otherwise a simulation."""
        if not device.IS_FAKE:
            cuda = pytest.importorskip("torch.cuda", reason="this Python has no PyTorch")
            return sys.modules["torch"] if cuda.is_available() else pytest.skip("PyTorch finds no device")
        modules = Torch().modules()
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return modules["torch"]
