"""The process that makes the calls."""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.call import make_call, one_line
from harness.case import Case, NotPossible
from harness.kernel import KERNELS, run_kernel

# A kernel is loaded within this time. Frameworks may take long to import.
LOADING_SECONDS = 300.0


class Worker:
    """A process that makes the calls, so that a crash or an endless loop ends one call only."""

    def __init__(self, kernel: Path, log: Path, timeout: float) -> None:
        self._kernel, self._log, self._timeout = kernel, log, timeout
        self._process: Any = None
        self._about: dict[str, Any] = {}
        log.write_bytes(b"")

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def load(self) -> dict[str, Any]:
        """Starts the process, and returns the name, version and operators of the kernel."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, self._kernel, self._log), daemon=True)
        self._process.start()
        theirs.close()
        about = self._receive(LOADING_SECONDS)
        if "operators" not in about:
            raise SystemExit(
                f"{self._kernel} cannot be loaded: {about['status']}: {about.get('message', '')}"
            )
        return about

    def call(self, job: dict[str, Any]) -> dict[str, Any]:
        """Makes one call, and returns what happened."""
        if self._process is None:
            self.load()
        self._pipe.send(job)
        return self._receive(self._timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            if self._pipe.poll(timeout):
                return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._process = None
            reason = signal.strsignal(-code) if code < 0 else f"exit code {code}"
            return {"status": "crashed", "message": f"{reason}: {last_line(self._log)}"}
        self._end()
        return {"status": "timeout", "message": f"no answer within {timeout:g} s"}

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def last_line(log: Path) -> str:
    """Returns the last line that the process printed."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing was printed"


def work(pipe: Any, kernel: Path, log: Path) -> None:
    """Loads the kernel and makes calls until the pipe is closed. Runs in its own process."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        module = load(kernel)
        operators = [name for name, (function, _) in KERNELS.items() if hasattr(module, function)]
        operators = getattr(module, "OPERATORS", list(KERNELS) if hasattr(module, "run") else operators)
        about = {key: getattr(module, key, lambda: "")() for key in ("name", "version")}
        about["name"] = about["name"] or kernel.stem
        if not operators:
            raise ImportError(
                f"it defines none of run, {', '.join(function for function, _ in KERNELS.values())}"
            )
        run = runner(module)
    except Exception as error:
        pipe.send({"status": "refused", "message": one_line(error)})
        return
    pipe.send({**about, "operators": operators})
    with contextlib.suppress(EOFError):
        while True:
            job = pipe.recv()
            pipe.send(make_call(run, job))


def runner(module: Any) -> Callable[[Case, str], Any]:
    """Returns a function that makes a call of a case."""

    def run(case: Case, kind: str) -> Any:
        if hasattr(module, "run"):
            return module.run(case, kind == "in_place")
        if kind == "kept":
            raise NotPossible("a function is no graph that keeps the old cache")
        return run_kernel(module, case, kind == "in_place")

    return run


def load(kernel: Path) -> Any:
    """Imports a Python file, which can import files beside it."""
    sys.path.insert(0, str(kernel.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"kernel_{kernel.stem}", kernel)
    if spec is None or spec.loader is None:
        raise ImportError(f"{kernel} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
