"""Python scripts that replay a history with nothing but the engine and NumPy."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from kvscatter.histories import _engine
from kvscatter.histories._engine import Engine
from kvscatter.histories._history import (
    Begin,
    Done,
    Feed,
    Load,
    Operation,
    Refusal,
    Save,
    SetAdapter,
    Start,
)
from kvscatter.histories._judge import Failed
from kvscatter.histories._words import story

# An adapter imports its base class from a package that need not be installed.
STUB = """
_stub = types.ModuleType("kvscatter.histories")
_stub.Engine, _stub.Refused, _stub.EngineError = Engine, Refused, EngineError
_stub.__getattr__ = lambda name: None
for _name in ("kvscatter", "kvscatter.histories", "kvscatter.histories._engine"):
    sys.modules[_name] = _stub
"""

COMPARISON = '''
def difference(logits, expected):
    """Returns the largest difference of two logits, as a part of the largest one that is expected."""
    logits, expected = np.asarray(logits, np.float64), np.asarray(expected, np.float64)
    return abs(logits - expected).max() / abs(expected).max()
'''


def script(failed: Failed, engine: Engine, making: str | None) -> str:
    """Returns a script with the adapter, the operations of a history, and the comparison of the logits that are wrong.

    Args:
        failed: The history and how it fails.
        engine: The engine that failed.
        making: The expression that makes the engine. The default calls its class without arguments.

    Raises:
        ValueError: The class of the engine is in no file.
    """
    made = making or f"{type(engine).__name__}()"
    steps = [
        f"engine, again = {made}, {made}",
        *(line for operation in failed.history.operations for line in _lines(operation, engine)),
        *_comparison(failed, engine),
    ]
    if any(isinstance(operation, Save) for operation in failed.history.operations):
        steps.insert(0, "folder = tempfile.mkdtemp()")
    parts = [
        "from __future__ import annotations\n\nimport sys\nimport tempfile\nimport types\n\nimport numpy as np\n",
        *_sources(engine),
        COMPARISON,
        "\ndef main():\n" + "\n".join(f"    {line}".rstrip() for line in steps) + "\n\n",
        "main()\n",
    ]
    title = ascii(engine.name or type(engine).__name__)
    return f"# A history that {title} computes wrongly.\n" + "\n".join(parts)


def _sources(engine: Engine) -> Iterator[str]:
    """Returns the source of the base class and of the modules of the adapter."""
    adapter = inspect.getmodule(type(engine))
    if adapter is None or getattr(adapter, "__file__", None) is None:
        raise ValueError("the class of the engine is in no file, so there is no script")
    ours = {base.__module__ for base in type(engine).__mro__ if base.__module__.startswith(__package__ or "")}
    yield _top_level(_engine, has_docstrings=False)
    # An adapter of kvscatter itself needs the installed package.
    if not any(
        isinstance(value, ModuleType) and value.__name__ == "kvscatter" for value in vars(adapter).values()
    ):
        yield STUB
    for name in sorted(ours - {_engine.__name__, adapter.__name__}):
        yield _top_level(sys.modules[name])
    if adapter.__name__ not in ours:
        yield f"sys.path.insert(0, {str(Path(adapter.__file__ or '').resolve().parent)!r})\n"
    yield _top_level(adapter)


def _top_level(module: ModuleType, has_docstrings: bool = True) -> str:
    """Returns the source of a module without its docstring, imports from the future, and what runs as a program."""
    text = Path(module.__file__ or "").read_text()
    tree = ast.parse(text)
    left_out = [node for node in tree.body if _is_left_out(node)]
    if not has_docstrings:
        for node in ast.walk(tree):
            # The body of a class needs a statement.
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and len(node.body) > 1:
                left_out += [each for each in node.body if _is_text(each)]
    numbers = {
        number for node in left_out for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [line for number, line in enumerate(text.splitlines(), 1) if number not in numbers]
    return "\n".join(lines).strip("\n") + "\n\n"


def _is_left_out(node: ast.stmt) -> bool:
    is_main = (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )
    is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return is_main or is_future or _is_text(node)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _lines(operation: Operation, engine: Engine) -> list[str]:
    """Returns the lines of an operation, with a comment in words that cannot end before its line."""
    comment = story(operation).encode("unicode_escape").decode()
    if isinstance(operation, Refusal):
        call = f"    {_call(operation.operation, engine)}  # {comment}"
        return ["try:", call, "except (Refused, *engine.refusals) as error:", '    print("refused:", error)']
    if isinstance(operation, Begin) and not hasattr(engine, "begin"):
        return []
    return [f"{_call(operation, engine)}  # {comment}"]


def _call(operation: Done, engine: Engine) -> str:
    match operation:
        case Feed(rows, padding):
            return f"logits = engine.feed({[list(row) for row in rows]}{_side(engine, padding)})"
        case Start(samples):
            return f"engine.start({samples})"
        case Save(sample, file) | Load(sample, file):
            return f'engine.{operation.name}({sample}, f"{{folder}}/sample-{file}")'
        case SetAdapter(adapter):
            return f"engine.set_adapter({adapter!r})"
        case _:
            values = [getattr(operation, field.name) for field in fields(operation)]
            shown = [repr(list(value) if isinstance(value, tuple) else value) for value in values]
            return f"engine.{operation.name}({', '.join(shown)})"


def _side(engine: Engine, padding: str | None) -> str:
    return f", {padding or engine.paddings[0]!r}" if engine.paddings else ""


def _comparison(failed: Failed, engine: Engine) -> list[str]:
    """Returns the lines that compute the text of the sample again, and compare the logits that differ."""
    if failed.sample is None:
        return [f"# Expected here: {failed.message!a}"]
    *_, (_, texts) = failed.history.texts()
    text = list(texts.samples[failed.sample].tokens)
    adapter = texts.adapter or (engine.adapters[0] if engine.adapters else None)
    lines = ["", f"text = {text}  # of sample {failed.sample}"]
    if hasattr(engine, "reference"):
        lines.append(f"expected = again.reference(text{f', {adapter!r}' if engine.adapters else ''})")
    else:
        most = engine.max_feed or len(text)
        lines += [
            "again.start(1)",
            *([f"again.set_adapter({adapter!r})"] if adapter is not None else []),
            f"parts = [text[first : first + {most}] for first in range(0, len(text), {most})]",
            f"rows = [np.atleast_2d(again.feed([part]{_side(engine, None)})[0]) for part in parts]",
            "expected = np.concatenate(rows) if sum(map(len, rows)) == len(text) else rows[-1]",
        ]
    if failed.position is None:
        return lines
    back = len(text) - failed.position + 1
    return [
        *lines,
        f"wrong, right = (np.atleast_2d(each)[-{back}] for each in (logits[{failed.sample}], expected))",
        'print("the logits differ by", difference(wrong, right), "of the largest")',
        f"assert difference(wrong, right) <= {engine.tolerance!r}",
    ]
