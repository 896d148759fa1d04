"""Starts a process for each candidate, and asks them in turn."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

# Libraries of numbers start as many threads as these variables allow.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
# How long a process must use no processor before another one is asked, and how long this is waited for. Threads of
# ONNX Runtime wait actively for some 45 ms after a run.
QUIET, PATIENCE = 0.02, 2.0


class Failure(Exception):
    """A candidate could not start, or failed. The message is the reason."""


class Worker(Protocol):
    """Answers the requests that `worker.py` describes."""

    def ask(self, request: str) -> str:
        """Returns the answer to a request."""
        ...


class Process:
    """A process that answers requests."""

    def __init__(self, command: Sequence[Any], log: Path, threads: int) -> None:
        quiet = {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment = {**os.environ, **dict.fromkeys(THREADS, str(threads)), **quiet}
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        words = [str(word) for word in command]
        try:
            with log.open("w") as errors:
                self._process = subprocess.Popen(words, stderr=errors, env=environment, **pipes)
        except OSError as error:
            raise Failure(str(error)) from error

    def ask(self, request: str) -> str:
        """Returns the answer to a request."""
        assert self._process.stdin and self._process.stdout
        try:
            print(request, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            raise Failure(lines[-1].strip() if lines else f"the process ended with {code}")
        self._wait_until_idle()
        return answer.strip()

    def _wait_until_idle(self) -> None:
        """Waits until no thread of the process runs, so that it does not slow down the next one."""
        end, before = time.monotonic() + PATIENCE, -1
        while (used := self._used()) != before and time.monotonic() < end:
            before = used
            time.sleep(QUIET)

    def _used(self) -> int:
        """Returns the processor time of all threads in nanoseconds."""
        used = 0
        for thread in Path(f"/proc/{self._process.pid}/task").glob("*/schedstat"):
            # A thread may have ended.
            with contextlib.suppress(OSError):
                used += int(thread.read_text().split()[0])
        return used

    def peak(self) -> int:
        """Returns the most bytes that the process had in memory at any time."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
        return 0

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        # A request may wait in the pipe of a process that has ended.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


@dataclass
class Times:
    """The times of a candidate in seconds, by the number of tokens in the cache."""

    prefill: dict[int, list[float]] = field(default_factory=dict)
    """The time of the tokens up to this number, from the empty cache. One entry for each pass."""
    decode: dict[int, list[float]] = field(default_factory=dict)
    """The time of each step after this number of tokens."""

    def as_json(self) -> dict[str, Any]:
        """Returns what JSON can contain."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    lengths: tuple[int, ...]
    passes: int
    """How often the cache is filled from empty."""
    rounds: int
    """How many turns each candidate has at each length of a pass."""
    steps: int
    """The tokens of a turn."""


def measure(
    workers: Mapping[str, Worker], tokens: Sequence[int], plan: Plan
) -> tuple[dict[str, Times], dict[str, str]]:
    """Fills the caches of all workers up to each length, and decodes there in turn.

    No worker goes back, because some cannot. So the steps after a length have up to `rounds * steps` more tokens in the
    cache, the same number in each worker. Also returns the reasons of the workers that failed, which have no times.
    """
    alive, failed = dict(workers), {}
    times = {name: Times() for name in workers}

    def all_of(request: str) -> Iterator[tuple[str, str]]:
        """Asks the workers in turn, and leaves out those that fail."""
        for name in [*alive]:
            try:
                yield name, alive[name].ask(request)
            except Failure as error:
                failed[name] = str(error)
                del alive[name], times[name]

    # The first tokens of a process allocate memory.
    for request in (f"feed {joined(tokens[:16])}", "decode 2"):
        list(all_of(request))
    for _ in range(plan.passes):
        list(all_of("reset"))
        total, cached = dict.fromkeys(workers, 0.0), 0
        for length in plan.lengths:
            for name, answer in all_of(f"feed {joined(tokens[cached:length])}"):
                total[name] += float(answer.split()[0])
                times[name].prefill.setdefault(length, []).append(total[name])
            for _ in range(plan.rounds):
                for name, answer in all_of(f"decode {plan.steps}"):
                    seconds = map(float, answer.split()[0].split(","))
                    times[name].decode.setdefault(length, []).extend(seconds)
            cached = length + plan.rounds * plan.steps
    return times, failed


def continuation(worker: Worker, prompt: Sequence[int], count: int) -> list[int]:
    """Returns the most likely tokens after a prompt."""
    worker.ask("reset")
    first = worker.ask(f"feed {joined(prompt)}").split()[1]
    return [int(token) for token in (first, *worker.ask(f"decode {count - 1}").split()[1].split(","))]


def agreeing(found: Sequence[int], wanted: Sequence[int]) -> int:
    """Returns after how many tokens two continuations of the same length first differ."""
    pairs = enumerate(zip(found, wanted, strict=True))
    return next((at for at, (one, other) in pairs if one != other), len(wanted))


def joined(tokens: Sequence[int]) -> str:
    """Returns tokens as the requests have them."""
    return ",".join(map(str, tokens))


def output(command: Sequence[Any], given: str, threads: int) -> str:
    """Runs a program with as many threads as the others, and returns what it prints."""
    environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
    done = subprocess.run(
        [str(word) for word in command], input=given, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise Failure((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout
