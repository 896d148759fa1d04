"""The command ``python -m kvscatter.histories``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import pkgutil
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kvscatter.histories import Engine, EngineError, ProcessEngine, Report, adapters, check, replay
from kvscatter.histories._check import CHOICES


class _Usage(Exception):
    """An argument is wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 if no history failed, 1 if one did, and 2 if none could run."""
    options = _parser().parse_args(arguments)
    try:
        if options.list:
            print("\n".join(_list()))
            return 0
        report, making = _run(options)
        _write(report, making, options)
        print(report)
        if report.failed is not None and not options.json:
            print("\n--json FILE writes the history, which --replay FILE runs again.")
        sys.stdout.flush()
    except BrokenPipeError:
        # Such as `| head`. Python would fail again when it closes the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        _clear_line()
        print("interrupted before a history failed", file=sys.stderr)
        return 130
    except (_Usage, EngineError, ImportError, OSError, ValueError) as error:
        _clear_line()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception:
        _clear_line()
        traceback.print_exc()
        return 2
    return 0 if report.passed else 1 if report.failed else 2


def _run(options: argparse.Namespace) -> tuple[Report, str]:
    """Searches or replays. Also returns the expression that makes the engine in a script."""
    if options.adapter is None:
        raise _Usage("ADAPTER is missing; --list shows those of this package")
    for path in filter(None, (options.json, options.html, options.script)):
        if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
            raise _Usage(f"{path} cannot be written: it is a folder, or its folder does not exist")
    make, making = _adapter(options.adapter)
    if options.replay:
        return replay(make, options.replay), making
    progress = _Progress(options.minutes * 60)
    report = check(
        make, minutes=options.minutes, seed=options.seed, without=options.without, progress=progress
    )
    _clear_line()
    return report, making


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kvscatter.histories",
        description="Runs random histories on the KV cache of an engine until cached decoding gives other logits than "
        "computing the text again. Prints the shortest history that fails.",
        epilog="examples:\n"
        "  python -m kvscatter.histories transformers:hybrid --minutes 1\n"
        "  python -m kvscatter.histories my_engine.py:MyEngine --script failure.py --html failure.html\n"
        "  python -m kvscatter.histories my_engine.py:MyEngine --replay failure.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "adapter",
        metavar="ADAPTER",
        nargs="?",
        help="NAME:VARIANT or NAME:MODEL of this package (see --list), FILE.py:CLASS, MODULE:CLASS, or "
        "process:'PROGRAM ARGUMENTS' for an engine that reads JSON",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the adapters of this package and their variants"
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=1.0,
        metavar="N",
        help="time of the search, to which shortening adds up to 70 s [default: 1]",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="make other histories [default: 0]")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=CHOICES,
        metavar="OPERATION",
        help=f"leave out an operation, such as one whose fault is known: {', '.join(CHOICES)}",
    )
    parser.add_argument(
        "--replay", metavar="FILE", help="run the history of a JSON file instead of searching"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the report as JSON; --replay reads a failure from it"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write the report as a page with pictures of the cache"
    )
    parser.add_argument(
        "--script",
        metavar="FILE",
        help="write a Python script that shows the failure with the engine and NumPy",
    )
    return parser


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and up to 10000")
    return minutes


def _list() -> list[str]:
    """Returns the adapters of this package, with their variants or the package that they lack."""
    lines = []
    for module in pkgutil.iter_modules(adapters.__path__):
        try:
            made = _of_package(module.name)
            variants = ("MODEL",) if getattr(made, "takes_model", False) else getattr(made, "variants", ())
            lines.append(f"{module.name}: {', '.join(variants)}")
        except ImportError as error:
            lines.append(f"{module.name}: not available ({error})")
    return lines


def _adapter(text: str) -> tuple[Callable[[], Engine], str]:
    """Returns what makes the engine, and the expression that does so in a script."""
    name, _, rest = text.rpartition(":") if ".py:" in text else text.partition(":")
    if name == "process":
        command = shlex.split(rest)
        if not command:
            raise _Usage("process needs a command: process:'PROGRAM ARGUMENTS'")
        return lambda: ProcessEngine(command), f"ProcessEngine({command!r})"
    if text.endswith(".py"):
        name, rest = text, ""
    if name.endswith(".py"):
        made = _class_of(_load(Path(name)), rest, name)
        return _without_arguments(made), f"{made.__name__}()"
    if name in {module.name for module in pkgutil.iter_modules(adapters.__path__)}:
        made = _of_package(name)
        variants = getattr(made, "variants", ())
        if getattr(made, "takes_model", False):
            if not rest:
                raise _Usage(f"{name} needs a model: {name}:MODEL")
            return lambda: made(rest), f"{made.__name__}({rest!r})"
        if rest and rest not in variants:
            raise _Usage(f"{name} has no variant {rest!r}; it has {', '.join(variants) or 'none'}")
        given = [rest] if rest else []
        return lambda: made(*given), f"{made.__name__}({', '.join(map(repr, given))})"
    if not rest:
        known = ", ".join(module.name for module in pkgutil.iter_modules(adapters.__path__))
        raise _Usage(f"{text!r} is none of {known}, process, FILE.py:CLASS and MODULE:CLASS")
    made = _class_of(importlib.import_module(name), rest, name)
    return _without_arguments(made), f"{made.__name__}()"


def _without_arguments(made: type[Engine]) -> Callable[[], Engine]:
    needed = [
        each.name
        for each in inspect.signature(made).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        raise _Usage(f"{made.__name__} needs arguments ({', '.join(needed)}); derive a class that needs none")
    return made


def _load(path: Path) -> ModuleType:
    """Imports a file as a module."""
    if not path.is_file():
        raise _Usage(f"{path} is not a file")
    # Another module can have the name of the file.
    name = f"_histories_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise _Usage(f"{error.filename}:{error.lineno}: {error.msg}") from error
    return module


def _class_of(module: ModuleType, name: str, place: str) -> type[Engine]:
    """Returns the adapter of this name, or the only one of a file."""
    every = {each.__name__: each for each in vars(module).values() if _is_adapter(each, module)}
    if not name and len(every) == 1:
        (name,) = every
    made = vars(module).get(name)
    if not (isinstance(made, type) and issubclass(made, Engine)):
        known = f"it has {', '.join(every)}" if every else "it has none"
        raise _Usage(f"{place} has no class {name!r} derived from kvscatter.histories.Engine; {known}")
    return made


def _of_package(name: str) -> Any:
    """Returns the adapter of a module of this package. Its arguments are a variant or a model."""
    return _class_of(importlib.import_module(f"{adapters.__name__}.{name}"), "", name)


def _is_adapter(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, Engine) and value.__module__ == module.__name__


def _write(report: Report, making: str, options: argparse.Namespace) -> None:
    if options.json:
        Path(options.json).write_text(report.json())
    if options.html:
        Path(options.html).write_text(report.html())
    if options.script and report.failed is not None:
        Path(options.script).write_text(report.script(making))


class _Progress:
    """Shows the number of histories on a terminal, ten times a second."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = self._shown = time.monotonic()

    def __call__(self, histories: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown >= 0.1:
            self._shown = now
            left = max(self._seconds - (now - self._begun), 0)
            print(f"\r{histories:,} histories, {left:.0f} s left ", end="", file=sys.stderr, flush=True)


def _clear_line() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
