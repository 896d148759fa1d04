"""The runtimes of runtimes.toml."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Runtime:
    """One version of a runtime."""

    name: str
    title: str
    version: str
    # The adapter's file in adapters/, or None if the answers are in a folder.
    adapter: str | None = None
    # Packages beside those of base.txt, with versions.
    requirements: list[str] = field(default_factory=list)
    # The calls that the adapter makes, by operator.
    calls: dict[str, str] = field(default_factory=dict)
    # Rules that the adapter's own code would answer instead of the runtime, with the reason.
    left_out: dict[str, str] = field(default_factory=dict)
    # Environment variables of the adapter.
    variables: dict[str, str] = field(default_factory=dict)
    # Another lock file than base.txt, and another folder below the build folder. So two steps share an environment.
    lock: str | None = None
    environment: str | None = None
    gigabytes: int = 1
    # What a reader of the results may not expect.
    note: str = ""
    results: Path | None = None

    @property
    def id(self) -> str:
        """Returns the name that options and folders have."""
        return f"{self.name}-{self.version}".replace(" ", "-")

    def is_selected(self, only: list[str] | None) -> bool:
        """Returns True if the options name this runtime or name none."""
        return not only or self.name in only or self.id in only


@dataclass(frozen=True)
class Document:
    """The contents of runtimes.toml."""

    runtimes: list[Runtime]
    # The runtimes that do not run here, with the words of their documents.
    not_run: list[dict[str, Any]]


def read_runtimes(path: Path) -> Document:
    """Reads the file. Each version becomes a runtime, and `{version}` in its requirements the version."""
    document = tomllib.loads(path.read_text())
    runtimes = []
    for table in document["runtime"]:
        for version in table.pop("versions"):
            requirements = [each.format(version=version) for each in table.get("requirements", [])]
            runtimes.append(Runtime(**{**table, "version": version, "requirements": requirements}))
    return Document(runtimes, document["not_run"])
