"""Registers the plugin in ONNX Runtime and in ONNX Runtime GenAI."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType

from kvscatter import _native

PROVIDER = "KvscatterExecutionProvider"


def library() -> str:
    """Returns the path of the plugin, which is the compiled module of this package."""
    return str(_native.__file__)


def required(name: str, oldest: tuple[int, int]) -> ModuleType:
    """Imports the module of a runtime and checks its version.

    Raises:
        ImportError: The module cannot be imported, or is older than ``oldest``.
    """
    package = name.replace("_", "-")
    needed = f"kvscatter.{name} needs {package} {oldest[0]}.{oldest[1]} or newer"
    try:
        module = importlib.import_module(name)
    except ImportError as failed:
        is_missing = isinstance(failed, ModuleNotFoundError) and failed.name == name
        advice = f"pip install {package}" if is_missing else failed
        raise ImportError(f"{needed}: {advice}") from failed
    version: str = module.__version__
    parts = re.match(r"(\d+)\.(\d+)", version)
    if parts is None or (int(parts[1]), int(parts[2])) < oldest:
        raise ImportError(f"{needed}, this is {version}")
    return module


def register(runtime: ModuleType, is_registered: Callable[[], bool]) -> None:
    """Registers the plugin in a runtime, unless it is registered already."""
    if is_registered():
        return
    try:
        runtime.register_execution_provider_library(PROVIDER, library())
    except Exception:
        # Another thread or a signal handler may have registered it meanwhile. A lock would not help, because a
        # handler would wait for the code that it interrupts.
        if not is_registered():
            raise
