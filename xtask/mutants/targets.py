"""The targets of `targets.toml`, their mutants, and samples of them."""

import hashlib
import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Stage:
    """A test command. A mutant that survives it is tested with the next one."""

    name: str
    cargo: list[str]
    # Parts of the names of tests that this stage leaves out.
    skip: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    # A part of the path of the files whose mutants this stage tests.
    only: str = ""


@dataclass(frozen=True)
class Target:
    """A part of the code with the tests that must catch its mutants."""

    name: str
    package: str
    files: list[str]
    stages: list[Stage]
    leave_out: list[str] = field(default_factory=list)
    # Profile settings that make a mutant's build and tests fast together.
    config: list[str] = field(default_factory=list)

    def listed(self, tree: Path) -> list[dict[str, Any]]:
        """Returns cargo-mutants' list of all mutants."""
        line = ["cargo", "mutants", "--no-config", "--list", "--json", *self.selection()]
        done = subprocess.run(line, cwd=tree, check=True, capture_output=True, text=True)
        mutants: list[dict[str, Any]] = json.loads(done.stdout)
        return mutants

    def mutants(self, tree: Path) -> dict[str, str]:
        """Returns cargo-mutants' names of all mutants, by names that stay when lines move."""
        return named([mutant["name"] for mutant in self.listed(tree)])

    def stages_of(self, mutant: str) -> list[Stage]:
        """Returns the stages that test a mutant, whose name begins with its file."""
        file, _, _ = mutant.partition(":")
        return [stage for stage in self.stages if stage.only in file]

    def first(self, stages: int | None) -> "Target":
        """Returns the target with only so many stages."""
        return replace(self, stages=self.stages[:stages])

    def selection(self) -> list[str]:
        """Returns the options of cargo-mutants that select the files."""
        files = [f"--file={file}" for file in self.files]
        return ["--package", self.package, *files, *(f"--exclude={file}" for file in self.leave_out)]


def targets() -> list[Target]:
    """Reads all targets."""
    document: dict[str, Any] = tomllib.loads((HERE / "targets.toml").read_text())
    return [
        Target(**{**table, "stages": [Stage(**stage) for stage in table["stages"]]})
        for table in document["target"]
    ]


def named(mutants: list[str]) -> dict[str, str]:
    """Names mutants without lines and columns. Equal names are numbered in their order in the file."""
    seen: Counter[str] = Counter()
    names = {}
    for mutant in mutants:
        name = re.sub(r"^([^:]+):\d+:\d+:", r"\1:", mutant)
        seen[name] += 1
        names[name if seen[name] == 1 else f"{name} #{seen[name]}"] = mutant
    return names


def sample(names: list[str], size: int, seed: int) -> list[str]:
    """Returns so many names. The seed and the names alone decide which, and their order."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:size]
