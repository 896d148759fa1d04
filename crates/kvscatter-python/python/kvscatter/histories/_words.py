"""Operations in words."""

from __future__ import annotations

from collections.abc import Sequence

from kvscatter.histories._history import (
    Accept,
    Add,
    Begin,
    Feed,
    Fork,
    Load,
    Operation,
    Poison,
    Refusal,
    Remove,
    Reorder,
    Save,
    SetAdapter,
    Start,
    Truncate,
    counted,
)


def story(operation: Operation) -> str:
    """Returns what an operation does, in words."""
    match operation:
        case Refusal(refused):
            return f"{story(refused)}: refused"
        case Start(samples):
            return f"start with {counted(samples, 'empty sample')}"
        case Feed(rows, padding):
            fed = [(sample, len(row)) for sample, row in enumerate(rows) if row]
            parts = [f"{counted(count, 'token')} to sample {sample}" for sample, count in fed]
            is_padded = padding is not None and len({len(row) for row in rows}) > 1
            return f"feed {_list(parts)}" + (f", padded on the {_word(padding)}" if is_padded else "")
        case Truncate(lengths):
            parts = [
                f"sample {sample} to {counted(length, 'token')}" for sample, length in enumerate(lengths)
            ]
            return f"truncate {_list(parts)}"
        case Begin():
            return "begin a draft"
        case Accept(counts):
            parts = [f"{count} of sample {sample}" for sample, count in enumerate(counts)]
            return f"accept the first tokens of the draft: {_list(parts)}"
        case Add():
            return "add an empty sample"
        case Fork(sample):
            return f"append a copy of sample {sample}"
        case Remove(sample):
            return f"remove sample {sample}"
        case Reorder(parents):
            return f"reorder: the samples become copies of {_list([str(parent) for parent in parents])}"
        case Save(sample, file):
            return f"save sample {sample} to file {file}"
        case Load(sample, file):
            return f"load sample {sample} from file {file}"
        case SetAdapter(adapter):
            return f"set adapter {_word(adapter)}"
        case Poison():
            return "write NaN into all slots that no query may see again"


def _word(name: str | None) -> str:
    """Returns a name without characters that control a terminal."""
    return ascii(name)[1:-1]


def _list(parts: Sequence[str]) -> str:
    """Joins parts with commas and an "and"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else "nothing"
