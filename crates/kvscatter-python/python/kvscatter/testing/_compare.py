"""Finds the wrong rows of a cache, and what they contain instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscatter._arrays import Array
from kvscatter._dtypes import FOUR_BITS
from kvscatter.testing._case import Case

Kind = Literal["not_written", "overwritten", "wrong_row", "garbled"]

KEPT: Final = "·"
WRITTEN: Final = "█"
GLYPHS: Final[dict[Kind, str]] = {"not_written": "○", "overwritten": "!", "wrong_row": "×", "garbled": "?"}
MEANINGS: Final = {
    KEPT: "kept",
    WRITTEN: "written",
    "○": "not written",
    "!": "written and must not be",
    "×": "another row there",
    "?": "neither its row nor the past",
}


class Row(NamedTuple):
    """A row of the update."""

    sample: int | None
    """The sample, counted from 0, or None if samples are packed one after the other."""
    row: int
    """The row of the sample, or the token if samples are packed."""


@dataclass(frozen=True)
class WrongSlot:
    """A slot of a cache with wrong contents."""

    lane: int
    """The sample, or ``layer * batch + sample`` for ``kv_cache_operation``."""
    slot: int
    """The index along the sequence axis."""
    kind: Kind
    expected: Row | None
    """The row of the update that must be there, or None if the slot must stay unchanged."""
    found: Row | None
    """The row of the update that is there, or None if the slot does not match any row."""
    elements: int = 0
    """The number of elements of the row, for all heads together."""
    right: int = 0
    """The number of elements that are right."""
    past: int = 0
    """The number of elements that still have their old value, although they must not."""


@dataclass(frozen=True)
class Lanes:
    """The samples of a cache, each as a lane along the sequence axis."""

    names: tuple[str, ...]
    marks: tuple[str, ...]
    """A glyph for each slot of each lane, see ``MEANINGS``."""
    wrong: tuple[WrongSlot, ...]

    def sentences(self, lane: int) -> list[str]:
        """Describes what is wrong in a lane, with one sentence for neighbouring slots of one kind."""
        mine = [slot for slot in self.wrong if slot.lane == lane]
        return [_sentence(list(run)) for run in _runs(mine)]


def same(left: Array, right: Array) -> bool:
    """Returns True if two arrays of one shape and dtype are equal bit for bit."""
    return bool(np.array_equal(_comparable(left), _comparable(right)))


def compare(case: Case, present: Array) -> Lanes:
    """Compares a kernel's result with the case, which is valid. ``present`` has the cache's shape and
    dtype."""
    assert case.origins is not None and case.expected is not None
    labels, rows = _labels(case)
    lanes = [_lanes(case, array) for array in (case.expected, case.cache, present)]
    expected, past, got = (_keys(array) for array in lanes)
    is_right, is_past = _equal(lanes[2], lanes[0]), _equal(lanes[2], lanes[1])
    origins = _lanes(case, case.origins)
    known: dict[Any, list[Row]] = {}
    for label, key in rows:
        known.setdefault(key, []).append(label)
    marks: list[str] = []
    wrong: list[WrongSlot] = []
    for lane, slots in enumerate(got):
        line = ""
        for slot, key in enumerate(slots):
            origin = int(origins[lane, slot].reshape(-1)[0]) if origins[lane, slot].size else -1
            must = None if origin < 0 else labels[origin]
            if key == expected[lane][slot]:
                line += KEPT if must is None else WRITTEN
                continue
            found = _nearest(known.get(key, []), lane)
            kind: Kind
            if must is None:
                kind = "overwritten"
            elif key == past[lane][slot]:
                kind, found = "not_written", None
            else:
                kind = "garbled" if found is None else "wrong_row"
            line += GLYPHS[kind]
            right = is_right[lane, slot]
            counts = right.size, int(right.sum()), int((is_past[lane, slot] & ~right).sum())
            wrong.append(WrongSlot(lane, slot, kind, must, found, *counts))
        marks.append(line)
    return Lanes(tuple(_names(case)), tuple(marks), tuple(wrong))


def hint(case: Case, lanes: Lanes, present: Array) -> str | None:
    """Describes what all misplaced rows have in common, if anything."""
    labels, rows = _labels(case)
    assert case.origins is not None
    known = {key: label for label, key in reversed(rows)}
    origins = _lanes(case, case.origins)
    if origins.size == 0 or len(known) < len(rows):
        return None  # the origin of identical rows cannot be identified
    places = {
        labels[int(origins[lane, slot].reshape(-1)[0])]: (lane, slot)
        for lane, slot in np.ndindex(*origins.shape[:2])
        if origins[lane, slot].reshape(-1)[0] >= 0
    }
    capacity, distances, lanes_apart = origins.shape[1], set(), set()
    for lane, slots in enumerate(_keys(_lanes(case, present))):
        for slot, key in enumerate(slots):
            if key in known and known[key] in places:
                home, place = places[known[key]]
                distances.add((slot - place) % capacity)
                lanes_apart.add(lane - home)
    if lanes_apart == {0} and len(distances) == 1 and (distance := distances.pop()) * 2 not in {0, capacity}:
        away, word = (distance, "after") if 2 * distance <= capacity else (capacity - distance, "before")
        return f"every row is {away} {'slot' if away == 1 else 'slots'} {word} its place"
    if lanes_apart and 0 not in lanes_apart and lanes.wrong:
        return "rows are in the wrong samples"
    return None


def _nearest(alike: list[Row], lane: int) -> Row | None:
    """Chooses from identical rows, which are common in narrow types. Prefers a row of the lane's own
    sample."""
    return next((row for row in alike if row.sample == lane), alike[0] if alike else None)


def _lanes(case: Case, array: Array) -> Array:
    """Returns a view of a cache as ``[lane, slot, the rest]``."""
    if case.operator == "tensor_scatter":
        moved = np.moveaxis(array, case.arguments["axis"], 1)
    elif case.operator == "kv_cache_update":
        moved = np.moveaxis(array, 2, 1)
    else:
        moved = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
    return moved.reshape(*moved.shape[:2], int(np.prod(moved.shape[2:])))


def _names(case: Case) -> list[str]:
    if case.operator != "kv_cache_operation":
        return [str(sample) for sample in range(case.cache.shape[0])]
    return [f"{layer}, {sample}" for layer, sample in np.ndindex(*case.cache.shape[:2])]


def _labels(case: Case) -> tuple[list[Row], list[tuple[Row, Any]]]:
    """Returns the row that each element of the update belongs to, and all rows with their bits as keys."""
    update = case.update
    if case.operator == "tensor_scatter":
        rows, axis = _lanes(case, update), case.arguments["axis"] % update.ndim
    elif case.operator == "kv_cache_update" and case.arguments["updateLengths"] is None:
        rows, axis = _lanes(case, update), 2
    else:
        tokens = update.shape[0] if update.ndim != 4 else update.shape[0] * update.shape[1]
        rows = update.reshape(tokens, -1)[None] if update.size else update.reshape(1, tokens, 0)
        labels = [Row(None, token) for token in range(tokens) for _ in range(rows.shape[2])]
        return labels, [(Row(None, token), key) for token, key in enumerate(_keys(rows)[0])]
    samples, places = np.indices(update.shape)[[0, axis]]
    labels = [Row(int(b), int(r)) for b, r in zip(samples.reshape(-1), places.reshape(-1), strict=True)]
    keys = _keys(rows)
    return labels, [(Row(b, r), key) for b, slots in enumerate(keys) for r, key in enumerate(slots)]


def _keys(lanes: Array) -> list[list[Any]]:
    """Returns the bits of each row as a key that distinguishes it from other rows."""
    comparable = _comparable(lanes)
    if comparable.dtype.hasobject:
        return [[tuple(row) for row in lane] for lane in comparable]
    return [[row.tobytes() for row in lane] for lane in comparable]


def _equal(left: Array, right: Array) -> npt.NDArray[np.bool_]:
    """Returns which elements of two arrays of one shape and dtype are equal bit for bit."""
    alike = _comparable(left) == _comparable(right)
    if alike.ndim > left.ndim:
        alike = np.logical_and.reduce(alike, axis=-1)  # an element is equal if all of its bytes are
    equal: npt.NDArray[np.bool_] = alike
    return equal


def _comparable(array: Array) -> Array:
    """Converts an array to strings, or to integers that are equal exactly when the bits are."""
    if array.dtype.hasobject:
        return array
    flat = np.ascontiguousarray(array)
    if array.dtype.name in FOUR_BITS:
        return flat.view(np.uint8) & 0xF
    # The bytes get their own dimension, because no NumPy type of 16 bytes compares by bits.
    return flat.reshape(*array.shape, 1).view(np.uint8)


def _runs(slots: Iterable[WrongSlot]) -> Iterator[Iterator[WrongSlot]]:
    """Groups neighbouring slots that are wrong in the same way and whose rows are consecutive."""

    def alike(item: tuple[int, WrongSlot]) -> tuple[Any, ...]:
        _, wrong = item
        ends = [(row and row.sample, row and row.row - wrong.slot) for row in (wrong.expected, wrong.found)]
        torn = (wrong.right, wrong.past) if wrong.found is None else None
        return wrong.kind, wrong.slot - item[0], torn, *ends

    for _, run in groupby(enumerate(slots), alike):
        yield (slot for _, slot in run)


def _sentence(run: list[WrongSlot]) -> str:
    first = run[0]
    one = len(run) == 1
    where = f"slot {first.slot}" if one else f"slots {first.slot}-{run[-1].slot}"
    expected = _rows([slot.expected for slot in run], first.lane)
    found = _rows([slot.found for slot in run], first.lane)
    s = "s" if one else ""
    if first.kind == "not_written":
        return f"{where}: {expected} {'is' if one else 'are'} not written"
    must = "must be kept" if first.kind == "overwritten" else f"must hold {expected}"
    return f"{where} {must}, hold{s} {found}" if found else f"{where} {must}: {_torn(first)}"


def _torn(slot: WrongSlot) -> str:
    """Counts the elements of a slot that contains neither a row nor its old value."""
    other = slot.elements - slot.right - slot.past
    counts = [
        (slot.right, "right"),
        (slot.past, "not written"),
        (other, "neither" if slot.expected else "changed"),
    ]
    parts = [f"{count} {'is' if count == 1 else 'are'} {what}" for count, what in counts if count]
    return f"of {slot.elements} elements {', '.join(parts)}"


def _rows(rows: list[Row | None], lane: int) -> str:
    known = [row for row in rows if row is not None]
    if not known:
        return ""
    what = "token" if known[0].sample is None else "row"
    numbers = f"{what} {known[0].row}" if len(known) == 1 else f"{what}s {known[0].row}-{known[-1].row}"
    foreign = known[0].sample is not None and known[0].sample != lane
    return f"{numbers} of sample {known[0].sample}" if foreign else numbers
