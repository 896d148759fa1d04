"""The examples with PyTorch of the pages, run as they stand on smaller caches."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
from played import values

DOCS = pathlib.Path(__file__).parents[4] / "docs"
CAPACITY = 16


def examples(page: str) -> list[str]:
    """Its examples with PyTorch, on caches that are filled sooner, with updates that say what is in them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = re.split(r"^##+ (?:With )?PyTorch$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    exchanged = {"4096": str(CAPACITY), "range(100)": f"range({CAPACITY})", "torch.empty(": "torch.ones("}
    for before, after in exchanged.items():
        blocks = [block.replace(before, after) for block in blocks]
    return blocks


def test_the_page_of_python(torch: Any) -> None:
    def next_positions(step: int) -> Any:
        return torch.full((8,), step, dtype=torch.int64, device="cuda")

    names: dict[str, Any] = {"next_positions": next_positions}
    eager, graph = examples("python/cuda.md")
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


def test_the_page_of_rust(torch: Any) -> None:
    step = torch.zeros(1, dtype=torch.float16, device="cuda")

    def model(*, out: tuple[Any, Any]) -> None:
        k, v = out
        step.add_(1)
        k.copy_(step)
        v.copy_(step)
        v.add_(100)

    names: dict[str, Any] = {"model": model}
    (example,) = examples("cuda.md")
    exec(example, names)
    assert (values(names["positions"]) == CAPACITY).all()
    expected = np.arange(1, CAPACITY + 1).reshape(-1, 1)
    assert (values(names["k"]) == expected).all()
    assert (values(names["v"]) == expected + 100).all()
