"""The machine of a run."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import pages

PACKAGES = ("onnxruntime", "onnxruntime-genai", "transformers", "torch", "kvscatter")


def facts(tools: Any) -> list[tuple[str, str]]:
    """Returns the names and values of what a reader needs to interpret the times."""
    memory = Path("/proc/meminfo").read_text().split()[1]
    llama = "import llama_cpp; print(llama_cpp.__version__)"
    python = tools.root / "environments" / "llama" / "bin" / "python"
    known = {
        "CPU": pages.machine(*PACKAGES),
        "memory": f"{int(memory) / (1 << 20):.0f} GiB",
        "kernel": platform.release(),
        "llama-cpp-python": _output(python, "-c", llama),
        "tract": tract(tools.repository),
        "commit": commit(tools.repository),
    }
    return [(name, fact) for name, fact in known.items() if fact]


def commit(repository: Path) -> str:
    """Returns the short name and the date of the last commit."""
    return _output("git", "-C", repository, "log", "-1", "--format=%h, %cs")


def tract(repository: Path) -> str:
    """Returns the version of tract."""
    lines = (repository / "Cargo.lock").read_text().splitlines()
    return lines[lines.index('name = "tract-onnx"') + 1].split('"')[1]


def _output(*words: Any) -> str:
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def _ticks() -> list[int]:
    """Returns the time of all processors by kind: user, nice, system, idle, waiting, …, stolen."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


class Stolen:
    """Measures the time that other virtual machines took from this one."""

    def __init__(self) -> None:
        self._began = _ticks()

    def share(self) -> float:
        """Returns the share of all time since the start."""
        spent = [now - then for now, then in zip(_ticks(), self._began, strict=True)]
        return spent[7] / max(1, sum(spent))


class Others:
    """Measures the time of processors that other programs and other virtual machines use."""

    def __init__(self) -> None:
        self._began, self._own = _ticks(), _own_ticks()

    def share(self) -> float:
        """Returns the share of all time since the start. This program's children must have ended."""
        spent = [now - then for now, then in zip(_ticks(), self._began, strict=True)]
        own = _own_ticks() - self._own
        return (sum(spent) - spent[3] - spent[4] - own) / max(1, sum(spent))


def _own_ticks() -> float:
    return sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")


def busy(seconds: float = 3.0) -> float:
    """Returns the share of the processors' time that other programs use."""
    began = _ticks()
    time.sleep(seconds)
    spent = [now - then for now, then in zip(_ticks(), began, strict=True)]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))
