"""One picture for each rule, as SVG: the slots of a cache and what a call does with them."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

CELL, GAP, LEFT, LINE = 26, 3, 78, 40
# The most slots, samples and queries that are drawn.
MOST = 8


def picture(corpus: Path, cases: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Returns the picture of a rule, and the case that it shows: the first that can be drawn, or a title."""
    for case in cases:
        folder = corpus / case["folder"]
        model = onnx.load(folder / "model.onnx")
        tensors = read(folder, model)
        draw = attention if case["operator"] == "Attention" else write
        drawn = draw(model.graph.node[0], tensors, case)
        if drawn:
            return drawn, case
    return svg([text(0, 16, cases[0]["what"])], 320, 24, cases[0]["what"]), cases[0]


def read(folder: Path, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Returns the inputs and outputs of a case by their names."""
    data = folder / "test_data_set_0"
    tensors = {}
    for kind, values in [("input", model.graph.input), ("output", model.graph.output)]:
        for number, value in enumerate(values):
            path = data / f"{kind}_{number}.pb"
            if path.exists():
                tensors[value.name] = numpy_helper.to_array(onnx.load_tensor(path))
    return tensors


def write(node: onnx.NodeProto, tensors: dict[str, np.ndarray], case: dict[str, Any]) -> str | None:
    """Draws the slots of each sample, with the rows of the update that go there. Bad rows lie outside."""
    starts, rows, capacity = positions(node, tensors)
    if starts is None or not starts or capacity > MOST or max(abs(start) for start in starts) > 2 * MOST:
        return None
    ring = attribute(node, "mode") == b"circular"
    refused = case["expect"] == "refused"
    marks, first, last = [], 0, capacity
    for sample, start in enumerate(starts):
        for row in range(rows[sample]):
            slot = start + row
            wrapped = ring and not 0 <= slot < capacity
            slot = slot % capacity if ring and capacity else slot
            first, last = min(first, slot), max(last, slot + 1)
            outside = not 0 <= slot < capacity
            kind = "bad" if outside else "late" if refused else "wrap" if wrapped else "new"
            marks.append((sample, slot, kind, f"row {row}"))
    shapes = []
    for sample, start in enumerate(starts[:MOST]):
        top = sample * LINE
        shapes.append(text(0, top + 17, f"sample {sample}"))
        shapes.append(text(0, top + 30, f"from {start}", small=True))
        drawn = {slot: (kind, row) for each, slot, kind, row in marks if each == sample}
        for slot in range(first, last):
            kind, row = drawn.get(slot, ("old" if 0 <= slot < capacity else "", ""))
            if kind:
                shapes.append(
                    box(LEFT + (slot - first) * (CELL + GAP), top, kind, row.removeprefix("row "), slot)
                )
    height = min(len(starts), MOST) * LINE
    return svg(shapes, LEFT + (last - first) * (CELL + GAP) + 4, height, case["what"])


def positions(
    node: onnx.NodeProto, tensors: dict[str, np.ndarray]
) -> tuple[list[int] | None, list[int], int]:
    """Returns the first slot and the number of rows of each sample, and the capacity."""
    names = list(node.input)
    if node.op_type == "TensorScatter":
        cache, axis = tensors[names[0]], attribute(node, "axis")
        if (
            len(names) < 2
            or not isinstance(axis, int)
            or not -cache.ndim < axis < cache.ndim
            or axis in (0, -cache.ndim)
        ):
            return None, [], 0
        update = tensors[names[1]]
        starts = (
            tensors[names[2]].reshape(-1).tolist() if len(names) > 2 and names[2] else [0] * cache.shape[0]
        )
        if update.ndim != cache.ndim or len(starts) != cache.shape[0]:
            return None, [], 0
        return starts, [update.shape[axis]] * len(starts), cache.shape[axis]
    if node.op_type == "KVCacheUpdate":
        cache, update, starts = (tensors[name] for name in names[:3])
        if cache.ndim != 4:
            return None, [], 0
        rows = [update.shape[2]] * len(starts) if len(names) < 4 else np.diff(tensors[names[3]]).tolist()
        return starts.tolist(), rows, cache.shape[2]
    ends, lengths = tensors["token_offset"].tolist(), tensors["seq_len"].tolist()
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    return starts, lengths, tensors["past"].shape[2]


def attention(node: onnx.NodeProto, tensors: dict[str, np.ndarray], case: dict[str, Any]) -> str | None:
    """Draws which slots each query sees. Slots whose keys are NaN or infinite are named."""
    q, k, sees = tensors["q"], tensors["k"], case.get("sees")
    slots, lengths = k.shape[-2], tensors.get("nonpad_kv_seqlen")
    queries = q.shape[-2]
    heads = attribute(node, "q_num_heads") or q.shape[1]
    rows = [
        (sample, head, query)
        for sample in range(q.shape[0])
        for head in range(heads)
        for query in range(queries)
    ]
    if slots > 2 * MOST or len(rows) > MOST:
        return None
    shapes, left = [], LEFT + 40
    for line, (sample, head, query) in enumerate(rows):
        top = line * LINE
        shapes.append(text(0, top + 17, f"sample {sample}" + f", head {head}" * (heads > 1)))
        known = lengths is not None and sample < len(lengths)
        tokens = f", {lengths[sample]} tokens" if known else ""
        shapes.append(text(0, top + 30, f"query {query}{tokens}", small=True))
        for slot in range(slots):
            seen = sees and sees[line][slot] == "x"
            kind = "late" if sees is None else "new" if seen else "old"
            bad = k.ndim == 4 and not np.isfinite(k[sample, 0, slot].astype(np.float64)).all()
            label = "•" if seen else "NaN" if bad and np.isnan(k[sample, 0, slot, 0]) else "∞" if bad else ""
            shapes.append(box(left + slot * (CELL + GAP), top, kind, label, slot))
    return svg(shapes, left + slots * (CELL + GAP) + 4, len(rows) * LINE, case["what"])


def attribute(node: onnx.NodeProto, name: str) -> Any:
    """Returns an attribute, or its default in TensorScatter."""
    found = [each for each in node.attribute if each.name == name]
    return onnx.helper.get_attribute_value(found[0]) if found else {"axis": -2}.get(name)


def box(left: int, top: int, kind: str, label: str, slot: int) -> str:
    """Returns a slot with its number below."""
    middle = left + CELL / 2
    return (
        f'<rect class="{kind}" x="{left}" y="{top + 2}" width="{CELL}" height="22" rx="3"/>'
        f'<text class="in" x="{middle}" y="{top + 17}">{label}</text>'
        f'<text class="slot" x="{middle}" y="{top + 34}">{slot}</text>'
    )


def text(left: int, top: int, words: str, small: bool = False) -> str:
    """Returns a line of text."""
    kind = ' class="small"' if small else ""
    return f'<text{kind} x="{left}" y="{top}">{escape(words)}</text>'


def svg(shapes: list[str], width: int, height: int, label: str) -> str:
    """Returns a picture with a description for those who do not see it."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(shapes)}</svg>'
    )
