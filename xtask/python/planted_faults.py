"""Plants faults in sessions, one at a time, and searches for histories that show them.

    planted_faults.py FOLDER [FAULT...] [--minutes N]

The faults are the patches of `testdata/faults`, and FAULT is the beginning of a name. FOLDER gets the converted models
and a copy of the sources, which are patched and built there. Each fault must be found in N minutes, by a history of at
most six operations. ONNX Runtime runs the decoders, because it needs no optimised build.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnxruntime

import kvscatter
from kvscatter.histories import ProcessEngine, Report, check

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "testdata" / "faults"
OPERATIONS = 6
# What each kind of model is converted from, and how.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("mobius-llama-dynamic", {"max_seq": 48}),
    "ring": ("decoders/optimum-0.1-mistral-window", {"max_seq": 64, "chunk": 4, "rewind": 6}),
    "state": ("decoders/transformers-lfm2", {"max_seq": 48}),
}


def main() -> int:
    """Returns 0 if all faults were found, and 1 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args()
    patches = [
        path
        for path in sorted(FAULTS.glob("*.patch"))
        if not options.faults or path.name.startswith(tuple(options.faults))
    ]
    if not patches:
        raise SystemExit(f"no fault begins with {', '.join(options.faults)}")
    sources = copied_sources(options.folder / "source")
    models = converted(options.folder)
    missed = [patch.stem for patch in patches if not is_found(patch, sources, models, options.minutes)]
    print(f"{len(patches) - len(missed)} of {len(patches)} faults found")
    return 1 if missed else 0


def copied_sources(folder: Path) -> Path:
    """Copies the files of the repository. Files that did not change keep their times, so that builds are reused."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, copy = ROOT / name, folder / name
        if source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    return folder


def converted(folder: Path) -> dict[str, Path]:
    """Converts a decoder of each kind."""
    models = {}
    for kind, (name, options) in MODELS.items():
        models[kind] = folder / kind / "model.onnx"
        models[kind].parent.mkdir(exist_ok=True)
        kvscatter.convert(ROOT / "testdata" / name / "model.onnx", models[kind], **options)
    return models


def is_found(patch: Path, sources: Path, models: dict[str, Path], minutes: float) -> bool:
    """Plants a fault, searches for it, and takes it out again."""
    description, kind = (line.partition(": ")[2] for line in patch.read_text().splitlines()[:2])
    apply = ["git", "apply", str(patch)]
    # The copy is inside of the repository, and git must not look for the files there.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(sources.parent.resolve())}
    subprocess.run(apply, cwd=sources, env=outside, check=True)
    try:
        build = "cargo build --quiet -p kvscatter-tract --example session_histories --target-dir".split()
        subprocess.run([*build, sources.parent / "build"], cwd=sources, check=True)
        report, seconds = searched(sources.parent / "build", models[kind], minutes)
    finally:
        subprocess.run([*apply, "--reverse"], cwd=sources, env=outside, check=True)
    if report.history is None:
        print(
            f"MISSED {patch.stem}: {report.histories:,} histories in {seconds:.0f} s. {description}",
            flush=True,
        )
        return False
    operations = len(report.history)
    print(
        f"{patch.stem}: {operations} operations, {report.histories:,} histories, {seconds:.0f} s", flush=True
    )
    return operations <= OPERATIONS


def searched(build: Path, model: Path, minutes: float) -> tuple[Report, float]:
    """Searches in a session with the engine ONNX Runtime."""
    program = [str(build / "debug/examples/session_histories"), str(model)]
    runtime = ["--engine", "onnxruntime", "--ort-lib", str(Path(onnxruntime.__file__).parents[1])]
    begun = time.monotonic()
    report = check(lambda: ProcessEngine([*program, *runtime]), minutes=minutes)
    return report, time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
