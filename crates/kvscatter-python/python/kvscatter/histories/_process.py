"""An engine in another process, such as one that is not written in Python."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kvscatter.histories._engine import Engine, EngineError, Refused

SECONDS: Final = 60
"""The time for an answer."""


class ProcessEngine(Engine):
    """An engine in another process, which reads operations from its standard input and answers on its output.

    It first prints a line with its facts: a JSON object with ``name``, ``vocabulary``, ``operations`` (a list of
    names) and any other facts of :class:`Engine`. Each operation is a line such as ``{"feed": {"rows": [[5, 7]]}}``,
    with the names and arguments of :class:`Engine`. The answer is one line: ``{"logits": ...}`` with a list for each
    sample and null for NaN, ``{"done": null}``, ``{"refused": "why"}`` or ``{"error": "why"}``.

    Args:
        command: The program and its arguments.
        facts: Facts of :class:`Engine` that replace those of the program.
    """

    def __init__(self, command: Sequence[str], **facts: Any) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[str] | None = None
        printed = self._launch()
        self.lacks = tuple(_OPERATIONS.keys() - set(printed.pop("operations")))
        for name, value in {**printed, **facts}.items():
            if name not in Engine.__annotations__ or name in ("lacks", "refusals", "tokens"):
                raise EngineError(f"{command[0]}: {name!r} is not a fact of an engine")
            setattr(self, name, tuple(value) if isinstance(value, list) else value)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __del__(self) -> None:
        self.close()

    def _launch(self) -> dict[str, Any]:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            facts = self._answer()
            if not isinstance(facts.get("operations"), list):
                raise RuntimeError(f"the first line of {self._command[0]} has no list of operations")
        except (OSError, RuntimeError) as error:
            raise EngineError(str(error)) from error
        return facts

    def _answer(self) -> dict[str, Any]:
        """Returns the next answer. Any other line ends the process."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], SECONDS)[0]:
            self.close()
            raise RuntimeError(f"{self._command[0]} did not answer in {SECONDS} s")
        line = process.stdout.readline()
        if not line:
            self._process = None
            raise RuntimeError(f"{self._command[0]} has ended with status {process.wait()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise RuntimeError(
                f"{self._command[0]} must answer with a line of JSON, not {line.strip()[:80]!r}"
            )
        if "refused" in answer:
            raise Refused(answer["refused"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _call(self, operation: str, **arguments: object) -> dict[str, Any]:
        if self._process is None:
            self._launch()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({operation: arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The status of a process that has ended is in its answer.
            pass
        return self._answer()

    def start(self, samples: int) -> None:
        """Forgets everything."""
        self._call("start", samples=samples)

    def feed(self, rows: list[list[int]], padding: str | None = None) -> list[Any]:
        """Runs the model."""
        side = {} if padding is None else {"padding": padding}
        answer = self._call("feed", rows=rows, **side)
        if "logits" not in answer:
            self.close()
            raise RuntimeError(f"{self._command[0]} must answer feed with logits, not {list(answer)}")
        logits = answer["logits"]
        return [np.array(sample, dtype=np.float32) for sample in logits]


def _method(operation: str, names: Sequence[str]) -> Any:
    def call(self: ProcessEngine, *values: object) -> None:
        self._call(operation, **dict(zip(names, values, strict=True)))

    call.__name__ = operation
    call.__doc__ = f"Sends the operation ``{operation}``."
    return call


_OPERATIONS = {
    "truncate": ["lengths"],
    "begin": [],
    "accept": ["counts"],
    "add": [],
    "fork": ["sample"],
    "remove": ["sample"],
    "reorder": ["parents"],
    "save": ["sample", "path"],
    "load": ["sample", "path"],
    "set_adapter": ["name"],
    "poison": [],
}

for _name, _names in _OPERATIONS.items():
    setattr(ProcessEngine, _name, _method(_name, _names))
