"""Tests many mutants with one build, in which each mutant has a switch that turns it on.

`xtask/examples/mutant_switches` writes such sources. A mutant that they cannot contain, because its place must be
constant or has another type then, is left to cargo-mutants.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree
from outcomes import Outcome
from run import PROFILE, CannotTest, limit_memory

from targets import Stage, Target

# rustc's errors that the text of a mutant also has without a switch: a wrong type, a missing trait or an unknown name.
TYPE_ERRORS = {"E0277", "E0308", "E0369", "E0425", "E0433", "E0599", "E0600", "E0063"}
# Ends a program after the first test that fails. The option is unstable, so `RUSTC_BOOTSTRAP` must be set.
FAIL_FAST = ["-Z", "unstable-options", "--fail-fast"]
# A test program that runs longer than so many times its time without a mutant, plus so many seconds, does not end.
PATIENCE = 10
LEAST_SECONDS = 10


@dataclass(frozen=True)
class Program:
    """A program with tests."""

    path: str
    folder: Path


@dataclass
class Switches:
    """The mutants of a target that have a switch, in another copy of the sources."""

    target: Target
    # The folder with the copies and the build folders.
    root: Path
    # The digest of the target's package.
    digest: str
    _left_out: set[int] = field(init=False)
    _unviable: set[int] = field(default_factory=set)
    # The programs of each stage, with their seconds without a mutant.
    _programs: dict[str, list[tuple[Program, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._copy = self.root / f"{self.target.name}-switches"
        self._sources = self.root / "tree"
        tree.update(self._copy, self._sources)
        self._mutants = self.target.listed(self._copy)
        # A function that returns `impl Trait` can return only one type, and a mutant of it is often of another one.
        self._left_out = {
            position
            for position, mutant in enumerate(self._mutants)
            if mutant["genre"] == "FnValue" and "impl " in mutant["function"]["return_type"]
        }
        while errors := list(self._errors(self._write())):
            self._leave_out(errors)
        print(
            f"{self.target.name}: {len(self._mutants) - len(self._left_out)} mutants have a switch, "
            f"{len(self._unviable)} do not compile, {len(self._left_out - self._unviable)} are tested alone",
            flush=True,
        )

    def has(self, position: int) -> bool:
        """Returns whether the mutant at a position of cargo-mutants' list is tested here."""
        return position not in self._left_out or position in self._unviable

    def test(self, mutant: str, position: int) -> Outcome:
        """Tests the mutant at a position of cargo-mutants' list. Only what survives a stage reaches the next."""
        if self._mutants[position]["name"] != mutant:
            raise RuntimeError(f"the mutant at {position} is not {mutant}")
        begin, stages = time.monotonic(), self.target.stages_of(mutant)
        result, name = "unviable", stages[0].name
        if position not in self._unviable:
            for stage, done in zip(stages, [None, *stages[:-1]], strict=True):
                result, name = self._test(stage, done, position), stage.name
                if result != "missed":
                    break
        return Outcome(result, name, round(time.monotonic() - begin, 1), self.digest)

    def _test(self, stage: Stage, done: Stage | None, position: int) -> str:
        # A stage that differs only in what it leaves out runs only what is new.
        is_more = done is not None and (done.cargo, done.env) == (stage.cargo, stage.env)
        new = done.skip if done and is_more else []
        chosen = {"KVSCATTER_MUTANT": str(position)}
        for program, seconds in self._built(stage):
            code = _run(program, stage, new, LEAST_SECONDS + PATIENCE * seconds, chosen)
            if code is None:
                # The machine may be busier than when the time was measured.
                seconds = self._measured(stage, program)
                code = _run(program, stage, new, 2 * LEAST_SECONDS + PATIENCE * seconds, chosen)
            if code != 0:
                return "timeout" if code is None else "caught"
        return "missed"

    def _built(self, stage: Stage) -> list[tuple[Program, float]]:
        """Returns the test programs of a stage. Those that are fast come first."""
        if stage.name not in self._programs:
            words = ["test", "--no-run", "--package", self.target.package, *stage.cargo]
            messages, text = self._cargo(words, stage)
            if not any(each["reason"] == "build-finished" and each["success"] for each in messages):
                raise CannotTest(f"{self.target.name}: the tests with switches do not compile:\n{text}")
            programs = []
            for each in messages:
                if each.get("executable") and each["profile"]["test"]:
                    program = Program(each["executable"], Path(each["manifest_path"]).parent)
                    programs.append((program, self._measured(stage, program)))
            self._programs[stage.name] = sorted(programs, key=lambda timed: timed[1])
        return self._programs[stage.name]

    def _measured(self, stage: Stage, program: Program) -> float:
        """Returns how many seconds a test program takes without a mutant."""
        begin = time.monotonic()
        if _run(program, stage, [], 3600, {}) != 0:
            raise CannotTest(f"{self.target.name}, {stage.name}: {program.path} fails without a mutant")
        return time.monotonic() - begin

    def _write(self) -> list[dict[str, Any]]:
        """Writes the sources with all switches except those that are left out, and returns their regions."""
        left_out = self.root / f"{self.target.name}-left-out.json"
        left_out.write_text(json.dumps(sorted(self._left_out)))
        root_file = f"crates/{self.target.package}/src/lib.rs"
        line = ["cargo", "run", "--quiet", "--package", "xtask", "--example", "mutant_switches", "--"]
        line += [str(self._sources), str(self._copy), root_file, str(left_out)]
        mutants = json.dumps(self._mutants)
        done = subprocess.run(line, cwd=tree.ROOT, input=mutants, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotTest(f"{self.target.name}: no sources with switches: {done.stderr}")
        regions: list[dict[str, Any]] = json.loads(done.stdout)
        # A place that no switch can express has no region.
        written = {mutant for region in regions for mutant in region["mutants"]}
        self._left_out |= set(range(len(self._mutants))) - written
        return regions

    def _errors(self, regions: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Compiles the crate, and yields the code of each error with the smallest region around it."""
        # The features of the tests decide what is compiled.
        features = [word for word in self.target.stages[0].cargo if word.startswith("--features")]
        messages, text = self._cargo(["check", "--package", self.target.package, "--lib", *features], None)
        found = []
        for each in messages:
            message = each.get("message", {})
            if each["reason"] != "compiler-message" or message["level"] != "error":
                continue
            code = (message["code"] or {}).get("code", "")
            for file, byte in _places(message):
                around = [
                    region
                    for region in regions
                    if region["file"] == file and region["start"] <= byte < region["end"]
                ]
                if around:
                    found.append((code, min(around, key=lambda region: region["end"] - region["start"])))
        finished = [each for each in messages if each["reason"] == "build-finished"]
        if not found and not (finished and finished[0]["success"]):
            raise CannotTest(f"{self.target.name}: the sources with switches do not compile:\n{text}")
        yield from found

    def _leave_out(self, errors: list[tuple[str, dict[str, Any]]]) -> None:
        for code, region in errors:
            self._left_out |= set(region["mutants"])
            if region["own"] and code in TYPE_ERRORS:
                mutant = self._mutants[region["mutants"][0]]
                # The choices of an expression must have one type, so another mutant may be at fault.
                if code != "E0308" or mutant["genre"] == "FnValue":
                    self._unviable |= set(region["mutants"])

    def _cargo(self, words: list[str], stage: Stage | None) -> tuple[list[dict[str, Any]], str]:
        """Runs cargo in the copy, and returns its messages, and what it printed besides."""
        flags = stage.env.get("RUSTFLAGS", "") if stage else ""
        # Other flags for the compiler need another build folder.
        build = self.root / ("switches-build-flags" if flags else "switches-build")
        settings = {**PROFILE, "CARGO_TARGET_DIR": str(build), "RUSTFLAGS": f"{flags} --cap-lints=allow"}
        config = [f"--config={each}" for each in self.target.config]
        line = ["cargo", *words, "--message-format=json", *config]
        done = subprocess.run(
            line, cwd=self._copy, env={**os.environ, **settings}, capture_output=True, text=True
        )
        return [json.loads(each) for each in done.stdout.splitlines() if each.startswith("{")], done.stderr


def _places(message: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields the files and bytes of an error: where macros are expanded, too."""
    for span in message["spans"]:
        each: dict[str, Any] | None = span if span["is_primary"] else None
        while each:
            yield each["file_name"], each["byte_start"]
            each = (each["expansion"] or {}).get("span")


def _run(program: Program, stage: Stage, tests: list[str], limit: float, more: dict[str, str]) -> int | None:
    """Runs the tests whose names contain one of these parts, or all tests of the stage if there is none.

    Returns the exit status, or `None` if the time was not enough.
    """
    settings = {
        "INSTA_UPDATE": "no",
        "CARGO_MANIFEST_DIR": str(program.folder),
        "RUSTC_BOOTSTRAP": "1",
        **stage.env,
        **more,
    }
    process = subprocess.Popen(
        [program.path, *FAIL_FAST, *tests, *(f"--skip={part}" for part in stage.skip)],
        cwd=program.folder,
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=limit_memory,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # A test may have started programs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
