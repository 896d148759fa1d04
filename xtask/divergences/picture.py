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
    """Draws which slots each query sees, as the expected output names them."""
    q, v = tensors["q"], tensors["v"]
    if q.ndim != 4 or v.ndim != 4 or v.shape[2] > MOST or q.shape[1] > 2:
        return None
    slots, lengths = v.shape[2], tensors.get("nonpad_kv_seqlen")
    y = tensors.get("y")
    shapes, line = [], 0
    for sample in range(min(q.shape[0], 4)):
        for head in range(q.shape[1]):
            for query in range(q.shape[2]):
                seen = None if y is None else slots_of(float(y[sample, head, query, 0]), slots)
                if y is not None and (seen is None or v.shape[3] != 1 or np.any(tensors["k"] != 0)):
                    return None
                heading = f"sample {sample}" + f", head {head}" * (q.shape[1] > 1)
                shapes.append(text(0, line * LINE + 17, heading))
                length = f"{lengths[sample]} tokens" if lengths is not None and sample < len(lengths) else ""
                shapes.append(
                    text(0, line * LINE + 30, f"query {query}" + f", {length}" * bool(length), small=True)
                )
                for slot in range(slots):
                    kind = "late" if seen is None else "new" if slot in seen else "old"
                    left = LEFT + 40 + slot * (CELL + GAP)
                    shapes.append(box(left, line * LINE, kind, "" if kind != "new" else "•", slot))
                line += 1
    return svg(shapes, LEFT + 40 + slots * (CELL + GAP) + 4, line * LINE, case["what"])


def slots_of(mean: float, slots: int) -> set[int] | None:
    """Returns the slots whose values, powers of two, have this mean. Returns None if there are none."""
    if mean == 0:
        return set()
    for count in range(1, slots + 1):
        total = round(mean * count)
        if abs(mean * count - total) < 1e-3 and total.bit_count() == count and total < 2**slots:
            return {slot for slot in range(slots) if total >> slot & 1}
    return None


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
