"""Tests the tests: changes the code in small ways, and counts the changes that no test notices.

    python main.py ROOT [options]

`cargo xtask mutants` calls this. A sample of the mutants of each target of `targets.toml` is tested. The outcomes are
kept in ROOT, so that the next run continues there. A mutant that survived is tested again when its package has changed.
"""

import argparse
import fcntl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import tree
from outcomes import Outcomes, explanations, wrong_explanations
from run import CannotTest, Runner
from switches import Switches

from report import Report
from targets import Target, sample, targets


@dataclass
class Work:
    """A target, with its sample and what is known about it."""

    target: Target
    given: argparse.Namespace
    mutants: dict[str, str] = field(init=False)
    outcomes: Outcomes = field(init=False)
    # Survived the first stages, and the others were not asked for.
    skipped: set[str] = field(default_factory=set)
    # Test mutants of the sources with this digest.
    runners: tuple[str, Switches, Runner] | None = None

    def __post_init__(self) -> None:
        self.outcomes = Outcomes(self.given.root / f"{self.target.name}.json")
        # The copy may contain a mutant at this moment.
        self.mutants = self.target.mutants(tree.ROOT)

    def sample(self) -> list[str]:
        """Returns the names of the mutants that count."""
        return sample(list(self.mutants), self.given.sample, self.given.seed)

    def pending(self, digest: str) -> list[str]:
        """Returns what is still to be tested. New mutants come before those that survived older tests."""
        reasons = explanations(self.target.name)
        names = dict.fromkeys([*self.sample(), *(name for name in reasons if name in self.mutants)])
        names = [name for name in names if self.outcomes.is_open(name, digest)]
        # An explained survivor was looked at, and new tests seldom change it.
        names = [name for name in names if name not in reasons or self.outcomes.of(name) is None]
        return sorted(names, key=lambda name: self.outcomes.of(name) is not None)

    def step(self, deadline: float) -> bool:
        """Tests the next few mutants. Returns `False` if there is none."""
        # The working tree may change at any time, and this copy does not.
        sources = self.given.root / "tree"
        tree.update(sources)
        self.mutants = self.target.mutants(sources)
        digest, of_all = tree.digest(sources, f"crates/{self.target.package}/"), tree.digest(sources)
        positions = {name: position for position, name in enumerate(self.mutants)}
        if self.runners is None or self.runners[0] != of_all:
            # Other sources may fail without a mutant, and their tests may catch more.
            self.skipped.clear()
            switches = Switches(self.target, self.given.root, digest)
            self.runners = (of_all, switches, Runner(self.target, self.given.root, digest))
        _, switches, alone = self.runners
        pending = [name for name in self.pending(digest) if name not in self.skipped]
        # A mutant without a switch costs a build, so it comes last.
        pending.sort(key=lambda name: not switches.has(positions[name]))
        for name in pending[: self.given.round]:
            if time.monotonic() >= deadline:
                break
            mutant, position = self.mutants[name], positions[name]
            if switches.has(position):
                outcome = switches.test(mutant, position)
            else:
                outcome = alone.test(mutant, position, len(positions))
            if outcome.result == "missed" and self.given.stages:
                self.skipped.add(name)
            else:
                self.outcomes.add(name, outcome)
            print(f"{outcome.result:8} {outcome.seconds:6.1f} s  {name}", flush=True)
        return bool(pending)

    def report(self) -> Report:
        """Returns what is known now."""
        reasons = explanations(self.target.name)
        wrong = wrong_explanations(reasons, self.mutants, self.outcomes)
        known = {name: self.outcomes.of(name) for name in self.sample()}
        return Report(self.target.name, len(self.mutants), known, reasons, wrong)


def run(works: list[Work], deadline: float) -> bool:
    """Tests a few mutants of each target in turn, until all are tested or the time is over.

    Returns `False` if a target cannot be tested.
    """
    is_busy, failed = True, set()
    while is_busy and time.monotonic() < deadline:
        is_busy = False
        for work in works:
            try:
                is_busy |= time.monotonic() < deadline and work.step(deadline)
                failed.discard(work.target.name)
            except CannotTest as error:
                print(error, flush=True)
                failed.add(work.target.name)
            print(work.report().line(), flush=True)
    return not failed


def main() -> None:
    """Tests what the arguments ask for, and fails if a complete sample is not good enough."""
    options = argparse.ArgumentParser(prog="cargo xtask mutants")
    options.add_argument("root", type=Path, help=argparse.SUPPRESS)
    names = [target.name for target in targets()]
    options.add_argument(
        "--only", action="append", choices=names, metavar="TARGET", help=f"one of {', '.join(names)}"
    )
    options.add_argument("--sample", type=int, default=400, metavar="N", help="mutants of each target")
    options.add_argument("--seed", type=int, default=1, metavar="S", help="chooses the sample")
    options.add_argument(
        "--minutes", type=float, default=float("inf"), metavar="N", help="stop after this time"
    )
    options.add_argument(
        "--round", type=int, default=40, metavar="N", help="mutants of a target before the next"
    )
    options.add_argument(
        "--stages",
        type=int,
        metavar="N",
        help="run only the first N test commands of a target, and record no survivor",
    )
    options.add_argument("--report", action="store_true", help="test nothing, and print what is known")
    given = options.parse_args()
    given.root = given.root.absolute()
    given.root.mkdir(parents=True, exist_ok=True)
    works = [
        Work(target.first(given.stages), given)
        for target in targets()
        if not given.only or target.name in given.only
    ]
    tested = True
    if not given.report:
        # The file stays open, and with it the lock.
        lock = (given.root / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another `cargo xtask mutants` runs, and there is one copy of the sources")
        tested = run(works, time.monotonic() + 60 * given.minutes)
    reports = [work.report() for work in works]
    for report in reports:
        print(report)
    sys.exit(not tested or any(report.fails() for report in reports))


if __name__ == "__main__":
    main()
