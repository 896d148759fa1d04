"""Runs cargo-mutants for one mutant, one stage of tests after the other."""

import json
import os
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from outcomes import Outcome

from targets import Stage, Target

# cargo-mutants' words for what became of a mutant.
RESULTS = {
    "CaughtMutant": "caught",
    "MissedMutant": "missed",
    "Timeout": "timeout",
    "Unviable": "unviable",
}
# A test that takes so many times as long as without a mutant will not end.
PATIENCE = 5
LEAST_SECONDS = 40
# A mutant may allocate without end. Then it must fail alone, and not together with the machine.
MEMORY = 8 << 30
# A mutant costs an incremental build. With optimisation across a crate's parts, such a build takes longer, and the
# linker sometimes misses a symbol.
PROFILE = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_DEV_LTO": "off", "CARGO_INCREMENTAL": "1"}
LINKER = "error: linking with"


class CannotTest(Exception):
    """The tests fail without a mutant, or the linker fails. Then they cannot judge one."""


@dataclass
class Runner:
    """Tests mutants of one target, in a copy of the sources that does not change."""

    target: Target
    # The folder with the copy and the build folders.
    root: Path
    # The digest of the target's package in the copy.
    digest: str
    # How long a test may take in each stage.
    _limits: dict[str, int] = field(default_factory=dict)

    def test(self, mutant: str, position: int, count: int) -> Outcome:
        """Tests the mutant at a position of cargo-mutants' list. Only what survives a stage reaches the next."""
        begin = time.monotonic()
        for stage in self.target.stages_of(mutant):
            result = self._test(stage, mutant, position, count)
            if result == "timeout":
                # The machine may be busier than when the limit was measured.
                del self._limits[stage.name]
                result = self._test(stage, mutant, position, count)
            if result != "missed":
                break
        return Outcome(result, stage.name, round(time.monotonic() - begin, 1), self.digest)

    def _test(self, stage: Stage, mutant: str, position: int, count: int) -> str:
        limit = self._limits.get(stage.name) or self._baseline(stage)
        output = self.root / self.target.name
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        # The name does not select a mutant: `--re` has no effect on mutants that delete a field (cargo-mutants 27.1).
        line = "cargo mutants --no-config --in-place --baseline=skip --sharding=round-robin".split()
        line += [f"--shard={position}/{count}", f"--timeout={limit}", "--output", str(output)]
        line += [
            *self.target.selection(),
            *(f"--cargo-arg={word}" for word in self._cargo(stage)),
            *_names(stage, "--"),
        ]
        with (output / "cargo-mutants.log").open("w") as log:
            self._call(stage, line, log)
        made = json.loads((output / "mutants.out" / "outcomes.json").read_text())["outcomes"]
        if [each["scenario"]["Mutant"]["name"] for each in made] != [mutant]:
            raise RuntimeError(f"cargo-mutants tested another mutant than {mutant}: {output}")
        result = RESULTS[made[0]["summary"]]
        if result == "unviable" and LINKER in (output / "mutants.out" / made[0]["log_path"]).read_text():
            # No change of the code does that. rustc's incremental files can be at fault.
            shutil.rmtree(self._build(stage) / "debug" / "incremental", ignore_errors=True)
            raise CannotTest(f"the linker failed: {output}")
        return result

    def _baseline(self, stage: Stage) -> int:
        """Tests the code without a mutant, and returns how many seconds a test with one may take."""
        path = self.root / f"{self.target.name}-baseline.log"
        with path.open("w") as log:
            # The first test of a changed copy also compiles, which is no measure.
            self._call(
                stage,
                ["cargo", "test", "--package", self.target.package, *self._cargo(stage), "--no-run"],
                log,
            )
            begin = time.monotonic()
            line = ["cargo", "test", "--package", self.target.package, *self._cargo(stage), *_names(stage)]
            if self._call(stage, line, log) != 0:
                raise CannotTest(
                    f"the tests fail without a mutant ({self.target.name}, {stage.name}): {path}"
                )
        self._limits[stage.name] = max(LEAST_SECONDS, int(PATIENCE * (time.monotonic() - begin)))
        return self._limits[stage.name]

    def _build(self, stage: Stage) -> Path:
        # Other flags for the compiler need another build folder.
        return self.root / ("build-flags" if "RUSTFLAGS" in stage.env else "build")

    def _cargo(self, stage: Stage) -> list[str]:
        return [*(f"--config={each}" for each in self.target.config), *stage.cargo]

    def _call(self, stage: Stage, line: list[str], log: object) -> int:
        settings = {"CARGO_TARGET_DIR": str(self._build(stage)), "INSTA_UPDATE": "no", **PROFILE}
        done = subprocess.run(
            line,
            cwd=self.root / "tree",
            env={**os.environ, **settings, **stage.env},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=limit_memory,
        )
        return done.returncode


def limit_memory() -> None:
    """Limits the memory of this process and of those that it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _names(stage: Stage, *before: str) -> list[str]:
    """Returns the words that leave tests out."""
    return [*before, "--", *(f"--skip={part}" for part in stage.skip)] if stage.skip else []
