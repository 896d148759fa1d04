"""Histories: the operations on one cache, and the text of each sample after them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

FORMAT: Final = 1
"""The version of the files. They have it under `kvscatter_history`."""
SAMPLES: Final = 64
STEPS: Final = 1000
"""The most samples and operations of a file, so that a hostile one takes little time and memory."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begins with empty samples."""

    samples: int
    name: ClassVar[str] = "start"


@dataclass(frozen=True, slots=True)
class Feed:
    """Runs the model on the next tokens of each sample."""

    rows: tuple[tuple[int, ...], ...]
    padding: str | None = None
    name: ClassVar[str] = "feed"


@dataclass(frozen=True, slots=True)
class Truncate:
    """Takes samples back."""

    lengths: tuple[int, ...]
    name: ClassVar[str] = "truncate"


@dataclass(frozen=True, slots=True)
class Begin:
    """Sets a point in each sample."""

    name: ClassVar[str] = "begin"


@dataclass(frozen=True, slots=True)
class Accept:
    """Keeps the first tokens of each sample since `Begin`."""

    counts: tuple[int, ...]
    name: ClassVar[str] = "accept"


@dataclass(frozen=True, slots=True)
class Add:
    """Appends an empty sample."""

    name: ClassVar[str] = "add"


@dataclass(frozen=True, slots=True)
class Fork:
    """Appends a copy of a sample."""

    sample: int
    name: ClassVar[str] = "fork"


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a sample. Later ones move up."""

    sample: int
    name: ClassVar[str] = "remove"


@dataclass(frozen=True, slots=True)
class Reorder:
    """Makes each sample a copy of one of them."""

    parents: tuple[int, ...]
    name: ClassVar[str] = "reorder"


@dataclass(frozen=True, slots=True)
class Save:
    """Writes a sample to a file."""

    sample: int
    file: int
    name: ClassVar[str] = "save"


@dataclass(frozen=True, slots=True)
class Load:
    """Replaces a sample by a saved one."""

    sample: int
    file: int
    name: ClassVar[str] = "load"


@dataclass(frozen=True, slots=True)
class SetAdapter:
    """Makes another adapter active."""

    adapter: str
    name: ClassVar[str] = "set_adapter"


@dataclass(frozen=True, slots=True)
class Poison:
    """Writes NaN into the slots that no query may see again."""

    name: ClassVar[str] = "poison"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operation that the engine refuses, so that everything stays as it was."""

    operation: Done

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.operation.name


Done = (
    Start
    | Feed
    | Truncate
    | Begin
    | Accept
    | Add
    | Fork
    | Remove
    | Reorder
    | Save
    | Load
    | SetAdapter
    | Poison
)

Operation = Done | Refusal

OPERATIONS: Final[dict[str, type[Done]]] = {kind.name: kind for kind in get_args(Done)}
"""The operations by their names, which are those of the methods of an adapter."""


@dataclass
class Sample:
    """The text of one sample, and its length at `Begin`."""

    tokens: tuple[int, ...] = ()
    begun: int | None = None


@dataclass
class Texts:
    """The text of each sample after some operations. This is what a cache must contain."""

    samples: list[Sample] = field(default_factory=list)
    files: dict[int, tuple[int, ...]] = field(default_factory=dict)
    adapter: str | None = None

    def apply(self, operation: Operation) -> None:
        """Applies an operation.

        Raises:
            ValueError: It is impossible here, such as a sample that does not exist.
        """
        samples = self.samples
        match operation:
            case Start(count):
                _check(count >= 1, f"start: samples is {count}, but must be at least 1")
                _check(count <= SAMPLES, f"start: samples is {count}, but must be at most {SAMPLES}")
                self.samples = [Sample() for _ in range(count)]
            case Feed(rows):
                self._one_for_each("feed", rows)
                for sample, row in zip(samples, rows, strict=True):
                    sample.tokens += row
            case Truncate(lengths):
                self._one_for_each("truncate", lengths)
                for sample, length in zip(samples, lengths, strict=True):
                    _check(
                        0 <= length <= len(sample.tokens),
                        f"truncate: {length} of {len(sample.tokens)} tokens",
                    )
                for sample, length in zip(samples, lengths, strict=True):
                    sample.tokens = sample.tokens[:length]
                    if sample.begun is not None and length < sample.begun:
                        sample.begun = None
            case Begin():
                for sample in samples:
                    sample.begun = len(sample.tokens)
            case Accept(counts):
                self._one_for_each("accept", counts)
                for sample, count in zip(samples, counts, strict=True):
                    _check(sample.begun is not None, "accept: a sample has not begun")
                    drafted = len(sample.tokens) - (sample.begun or 0)
                    _check(0 <= count <= drafted, f"accept: {count} of {drafted} drafted tokens")
                for sample, count in zip(samples, counts, strict=True):
                    sample.tokens = sample.tokens[: (sample.begun or 0) + count]
                    sample.begun = None
            case Add():
                self._check_room()
                samples.append(Sample())
            case Fork(index):
                self._check_room()
                samples.append(Sample(self._sample("fork", index).tokens))
            case Remove(index):
                self._sample("remove", index)
                del samples[index]
            case Reorder(parents):
                self._one_for_each("reorder", parents)
                self.samples = [Sample(self._sample("reorder", parent).tokens) for parent in parents]
            case Save(index, file):
                self.files[file] = self._sample("save", index).tokens
            case Load(index, file):
                _check(file in self.files, f"load: file {file} was not saved")
                self._sample("load", index)
                samples[index] = Sample(self.files[file])
            case SetAdapter(adapter):
                self.adapter = adapter
            case Poison() | Refusal():
                pass

    def copy(self) -> Texts:
        """Returns a copy that later operations do not change."""
        samples = [Sample(sample.tokens, sample.begun) for sample in self.samples]
        return Texts(samples, dict(self.files), self.adapter)

    def _check_room(self) -> None:
        _check(len(self.samples) < SAMPLES, f"at most {SAMPLES} samples")

    def _sample(self, operation: str, index: int) -> Sample:
        _check(
            0 <= index < len(self.samples),
            f"{operation}: sample {index} of {counted(len(self.samples), 'sample')}",
        )
        return self.samples[index]

    def _one_for_each(self, operation: str, values: Sequence[object]) -> None:
        _check(
            len(values) == len(self.samples),
            f"{operation}: {counted(len(values), 'value')} for {counted(len(self.samples), 'sample')}",
        )


@dataclass(frozen=True)
class History:
    """The operations on one cache, in order. The first one is a `Start`."""

    operations: tuple[Operation, ...]

    def __len__(self) -> int:
        """Returns the number of operations after the first one."""
        return len(self.operations) - 1

    def __bool__(self) -> bool:
        return True

    def texts(self) -> Iterable[tuple[Operation, Texts]]:
        """Returns each operation with the texts after it.

        Raises:
            ValueError: An operation is impossible.
        """
        texts = Texts()
        for operation in self.operations:
            texts.apply(operation)
            yield operation, texts.copy()

    def document(self) -> dict[str, Any]:
        """Returns the history as values for JSON."""
        steps = [_step(operation) for operation in self.operations]
        return {"kvscatter_history": FORMAT, "operations": steps}

    def save(self, path: str | Path) -> None:
        """Writes a file that :meth:`load` reads."""
        Path(path).write_text(self.text())

    def text(self) -> str:
        """Returns the text of such a file, with an operation in each line."""
        steps = [json.dumps(step) for step in self.document()["operations"]]
        return f'{{"kvscatter_history": {FORMAT}, "operations": [\n  ' + ",\n  ".join(steps) + "\n]}\n"

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Reads a file that :meth:`save` or a report has written.

        Raises:
            ValueError: The file is not a history, or an operation is impossible.
        """
        try:
            return cls.from_document(json.loads(Path(path).read_text()))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_document(cls, document: object) -> History:
        """Reads the values of :meth:`document`.

        Raises:
            ValueError: They are not a history, or an operation is impossible.
        """
        if not isinstance(document, dict) or document.get("kvscatter_history") != FORMAT:
            raise ValueError(f'no history: "kvscatter_history": {FORMAT} is missing')
        steps = document.get("operations")
        if not isinstance(steps, list) or not steps:
            raise ValueError("no history: operations must be a list that is not empty")
        if len(steps) > STEPS:
            raise ValueError(f"{len(steps)} operations, of which at most {STEPS} are possible")
        history = cls(tuple(_operation(step) for step in steps))
        if not isinstance(history.operations[0], Start):
            raise ValueError("the first operation must be start")
        if any(isinstance(operation, Start) for operation in history.operations[1:]):
            raise ValueError("only the first operation can be start")
        for _ in history.texts():
            pass
        return history


def _step(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, Refusal):
        return {**_step(operation.operation), "refused": True}
    return {operation.name: _values(operation)}


def _operation(step: object) -> Operation:
    """Reads one operation, such as `{"truncate": {"lengths": [3]}}`."""
    if isinstance(step, dict) and step.get("refused") is True:
        refused = _operation({name: values for name, values in step.items() if name != "refused"})
        if isinstance(refused, Refusal | Start):
            raise ValueError(f"{refused.name} cannot be refused")
        return Refusal(refused)
    if not isinstance(step, dict) or len(step) != 1:
        raise ValueError(f"{json.dumps(step)[:80]} is not an operation")
    ((name, values),) = step.items()
    kind = OPERATIONS.get(name)
    if kind is None:
        raise ValueError(f"{name!r} is not an operation; they are {', '.join(OPERATIONS)}")
    names = {field.name for field in fields(kind)}
    required = names - {"padding"}
    if not isinstance(values, dict) or not required <= values.keys() <= names:
        raise ValueError(
            f"{name} needs {', '.join(sorted(required)) or 'no values'}: {json.dumps(values)[:80]}"
        )
    return kind(**{key: _READ[key](name, key, value) for key, value in values.items()})


def _integer(name: str, key: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name}: {key} must be an integer of at least 0, not {json.dumps(value)[:80]}")
    return value


def _integers(name: str, key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: {key} must be a list of integers, not {json.dumps(value)[:80]}")
    return tuple(_integer(name, key, item) for item in value)


def _rows(name: str, key: str, value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: {key} must be a list of lists, not {json.dumps(value)[:80]}")
    return tuple(_integers(name, key, item) for item in value)


def _string(name: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {key} must be a string, not {json.dumps(value)[:80]}")
    return value


_READ: Final[dict[str, Callable[[str, str, object], Any]]] = {
    **dict.fromkeys(("samples", "sample", "file"), _integer),
    **dict.fromkeys(("lengths", "counts", "parents"), _integers),
    **dict.fromkeys(("adapter", "padding"), _string),
    "rows": _rows,
}


def _values(operation: Done) -> dict[str, Any]:
    return {key: value for key, value in asdict(operation).items() if value is not None}


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 token" or "2 histories"."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun}"
