"""Python scripts that replay a history with nothing but the engine and NumPy."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from kvscatter.histories import _engine, adapters
from kvscatter.histories._engine import Engine
from kvscatter.histories._history import (
    Begin,
    Feed,
    History,
    Load,
    Operation,
    Refusal,
    Save,
    SetAdapter,
    Start,
    story,
)
from kvscatter.histories._judge import Failed


def script(failed: Failed, engine: Engine, making: str | None) -> str:
    """Returns a script with the adapter, the operations of a history, and the comparison of its last logits.

    Args:
        failed: The history and how it fails.
        engine: The engine that failed.
        making: The expression that makes the engine, or None if the script has to be completed.
    """
    source = _sources(engine)
    lines = [
        f'"""{_first_line(engine)}"""',
        "",
        *source,
        "",
        *_comparison(),
        "",
        f"engine = {making or type(engine).__name__ + '()'}",
        *_calls(failed.history, engine),
        *_check(failed, engine),
    ]
    return "\n".join(lines) + "\n"


def _first_line(engine: Engine) -> str:
    return f"Shows a history that {engine.name or type(engine).__name__} computes wrongly."


def _sources(engine: Engine) -> list[str]:
    """Returns the source of the base class and of the adapter's module, without imports of this package."""
    lines: list[str] = []
    for file in (_engine.__file__, *_files(inspect.getmodule(type(engine)))):
        lines += ["", "", *_without_imports(Path(file).read_text())]
    return ["from __future__ import annotations", "", "import numpy as np", *lines]


def _files(module: ModuleType | None) -> list[str]:
    """Returns the file of an adapter's module, after those of the adapters that it uses."""
    if module is None or module.__file__ is None:
        raise ValueError("the class of the engine is in no file, so there is no script")
    used = [inspect.getmodule(value) for value in vars(module).values() if inspect.isclass(value)]
    others = {
        other
        for other in used
        if other not in (None, module) and other.__name__.startswith(adapters.__name__)
    }
    return [file for other in others for file in _files(other)] + [module.__file__]


def _without_imports(text: str) -> list[str]:
    """Removes the docstring, imports of kvscatter and of the future, and code that runs as a program."""
    tree = ast.parse(text)
    removed: set[int] = set()
    for node in ast.walk(tree):
        is_main = isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
        if isinstance(node, ast.stmt) and (is_main or _is_removed_import(node)):
            removed.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    first = tree.body[0] if tree.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        removed.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in removed]
    return "\n".join(kept).strip("\n").split("\n")


def _is_removed_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module is not None and (
            node.module == "__future__" or node.module.startswith(__package__ or "")
        )
    return isinstance(node, ast.Import) and all(name.name == __package__ for name in node.names)


def _comparison() -> list[str]:
    return [
        "def difference(logits, expected):",
        '    """Returns the largest difference of the logits after the last token, as a part of the largest one."""',
        "    logits, expected = (np.atleast_2d(np.asarray(each, np.float64))[-1] for each in (logits, expected))",
        "    return abs(logits - expected).max() / abs(expected).max()",
    ]


def _calls(history: History, engine: Engine) -> list[str]:
    lines = []
    for operation in history.operations:
        if not (isinstance(operation, Begin) and not hasattr(engine, "begin")):
            lines += _call_lines(operation, engine)
    if any(isinstance(operation, Save) for operation in history.operations):
        lines = ["import tempfile", "folder = tempfile.mkdtemp()", *lines]
    return lines


def _call_lines(operation: Operation, engine: Engine) -> list[str]:
    call = f"{_call(operation, engine)}  # {story(operation)}"
    if not isinstance(operation, Refusal):
        return [call]
    return [
        "try:",
        f"    {call}",
        "except (Refused, *engine.refusals) as error:",
        '    print("refused:", error)',
    ]


def _call(operation: Operation, engine: Engine) -> str:
    match operation:
        case Refusal(refused):
            return _call(refused, engine)
        case Feed(rows, padding):
            rows_text = repr([list(row) for row in rows])
            side = f", {padding or engine.paddings[0]!r}" if engine.paddings else ""
            return f"logits = engine.feed({rows_text}{side})"
        case Start(samples):
            return f"engine.start({samples})"
        case Save(sample, file) | Load(sample, file):
            return f'engine.{operation.name}({sample}, f"{{folder}}/{file}")'
        case SetAdapter(adapter):
            return f"engine.set_adapter({adapter!r})"
        case _:
            values = [getattr(operation, field.name) for field in fields(operation)]
            shown = [repr(list(value) if isinstance(value, tuple) else value) for value in values]
            return f"engine.{operation.name}({', '.join(shown)})"


def _check(failed: Failed, engine: Engine) -> list[str]:
    """Returns the lines that compute the logits of the sample again and compare them."""
    *_, (_, texts) = failed.history.texts()
    if failed.sample is None or failed.position is None:
        return [f"# Expected: {failed.message}"]
    tokens = list(texts.samples[failed.sample].tokens)
    back = len(tokens) - failed.position
    text = tokens[: failed.position]
    adapter = texts.adapter
    shown = f"logits[{failed.sample}]" if back == 0 else f"logits[{failed.sample}][:-{back}]"
    again = ["", f"text = {text}"]
    if hasattr(engine, "reference"):
        names = f", {adapter!r}" if engine.adapters else ""
        again.append(f"expected = engine.reference(text{names})")
    else:
        again.append("engine.start(1)")
        if adapter is not None:
            again.append(f"engine.set_adapter({adapter!r})")
        side = f", {engine.paddings[0]!r}" if engine.paddings else ""
        most = engine.max_feed or len(text)
        again += [
            f"for first in range(0, len(text), {most}):",
            f"    (expected,) = engine.feed([text[first : first + {most}]]{side})",
        ]
    return [
        f"logits = {shown}",
        *again,
        'print("the logits differ by", difference(logits, expected), "of the largest")',
        f"assert difference(logits, expected) <= {engine.tolerance!r}",
    ]
