"""Runs the PyTorch examples of the page unchanged, except for smaller caches."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import device
import numpy as np
from simulated import values

from kvscatter import cuda

PAGE = pathlib.Path(__file__).parents[4] / "docs/python/cuda.md"
CAPACITY = 16


def examples() -> list[str]:
    """Returns the page's PyTorch examples, with smaller caches and with updates of known values."""
    section = PAGE.read_text(encoding="utf-8").split("\n## PyTorch\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    exchanged = {"4096": str(CAPACITY), "range(100)": f"range({CAPACITY})", "torch.empty(": "torch.ones("}
    for before, after in exchanged.items():
        blocks = [block.replace(before, after) for block in blocks]
    return blocks


def test_the_examples_write_what_they_show(torch: Any) -> None:
    def next_positions(step: int) -> Any:
        return torch.full((8,), step, dtype=torch.int64, device="cuda")

    names: dict[str, Any] = {"next_positions": next_positions}
    eager, graph, paged = examples()
    exec(eager, names)
    tensors = [*names["k"], *names["v"]]
    assert len(tensors) == 64
    for tensor in tensors:
        cache = values(tensor)
        assert (cache[:, :, 0] == 1).all() and not cache[:, :, 1:].any()
    exec(graph, names)
    torch.cuda.synchronize()
    for tensor in tensors:
        assert (values(tensor) == 1).all(), "every slot was a position once"
    names["write"].status.check()
    exec(paged, names)
    torch.cuda.synchronize()
    for slots in values(names["kv"]).reshape(2, -1, 8, 128):
        assert (slots[:256] == 1).all() and not slots[256:].any()
    names["paged"].status.check()


def test_blocks_that_hold_keys_and_values() -> None:
    """The slots of the keys do not have one stride, so the page has separate mappings for keys and
    values."""
    blocks, size = 6, 4
    kv = device.copy(np.zeros((blocks, 2, size, 2, 8), np.float16))
    slot = np.array([0, 5, -1, -7, 23])
    stream = device.Stream()
    for part in range(2):
        update = device.copy(np.full((1, slot.size, 2, 8), part + 1, np.float16))
        mapping = device.copy(slot + slot // size * size + part * size)
        whole, status = kv.reshape(1, -1, 2, 8), device.memory(16).view(np.int64)
        pair, lists = (device.Dlpack(whole), device.Dlpack(update)), device.Dlpack(mapping)
        write = cuda.prepare_slots([pair], lists, status=device.Dlpack(status))
        write.launch(stream)
        stream.synchronize()
        write.status.check()
    expected = np.zeros_like(kv)
    for block, row in (divmod(each, size) for each in slot if each >= 0):
        expected[block, :, row] = np.array([1, 2]).reshape(2, 1, 1)
    assert (kv == expected).all()
