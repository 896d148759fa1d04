"""Exports tiny decoders of many families, converts them, and compares what they generate.

    python main.py ROOT --environments FOLDER --command KVSCATTER [options]

`cargo xtask exports` calls this with the environments that it makes. Without `--reuse`, everything is made again.
"""

import argparse
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exporters import EXPORTERS, Exporter
from families import families

HERE = Path(__file__).parent
# The environment of the checks.
MAIN = "optimum"


class Runner:
    """Runs the programs of this folder in their environments."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._root, self._environments = given.root, given.environments
        only = [word for family in given.only or [] for word in ("--only", family)]
        self._selection = only + ["--reuse"] * given.reuse

    def run(self, environment: str, program: str, *options: str | Path) -> None:
        """Runs a program, which prints a line for each family."""
        python = self._environments / environment / "bin" / "python"
        subprocess.run([python, HERE / program, self._root, *options, *self._selection], check=True)


def selected(names: list[str] | None) -> list[Exporter]:
    """Returns the exporters with these names, and before them those whose exports they start from."""
    if not names:
        return EXPORTERS
    sources = {each.source for each in EXPORTERS if each.name in names}
    return [each for each in EXPORTERS if each.name in names or each.name in sources]


def for_each(exporters: list[Exporter], run: Callable[[Exporter], None]) -> None:
    """Runs a program for each exporter, as many at once as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, exporters))


def main() -> None:
    """Runs the programs that the arguments ask for."""
    options = argparse.ArgumentParser(prog="cargo xtask exports")
    options.add_argument("root", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--environments", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument("--command", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument(
        "--only", action="append", metavar="FAMILY", help="a family of families.toml; repeat it"
    )
    names = [each.name for each in EXPORTERS]
    options.add_argument("--exporter", action="append", choices=names, help="an exporter; repeat it")
    options.add_argument("--reuse", action="store_true", help="keep the exports and results that exist")
    options.add_argument(
        "--recheck", action="store_true", help="keep the exports that exist, and check them again"
    )
    options.add_argument("--write-docs", action="store_true", help="write docs/models/support.md")
    given = options.parse_args()
    exporters = selected(given.exporter)
    check = Runner(given)
    given.reuse |= given.recheck
    make = Runner(given)
    for environment in sorted({family.environment for family in families(given.only)}):
        make.run(environment, "reference.py", "--environment", environment)
    sources = [each for each in exporters if each.source == "checkpoints"]
    for stage in (sources, [each for each in exporters if each not in sources]):
        for_each(stage, lambda each: make.run(each.environment, "export.py", "--exporter", each.name))
    for_each(
        exporters,
        lambda each: check.run(MAIN, "check.py", "--command", given.command, "--exporter", each.name),
    )
    report = [given.environments / MAIN / "bin" / "python", HERE / "report.py", given.root]
    subprocess.run([*report, *["--write-docs"] * given.write_docs], check=True)


if __name__ == "__main__":
    main()
