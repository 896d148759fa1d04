"""Exports checkpoints with one exporter.

    python export.py ROOT --exporter NAME [--only FAMILY] [--reuse]

Writes ROOT/NAME/FAMILY/model.onnx, and beside it `status.json`: whether the exporter succeeded, else why not. Every
export runs in a separate process, a fork of this one, so that the packages are imported once. Its output
goes to `log.txt`.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path

from exporters import EXPORTERS, Export, Exporter
from families import families

SECONDS = 240
# What an export needs beside its decoder. Exporters that start from another export do not write them again.
BESIDE = ("config.json", "encoder_model.onnx", "decoder_model.onnx")


def export(exporter: Exporter, source: Path, folder: Path) -> None:
    """Exports one checkpoint and writes its status."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    process = multiprocessing.get_context("fork").Process(
        target=_isolated, args=(exporter.load(), source, folder)
    )
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        _write(folder, f"took longer than {SECONDS} s")
    elif not (folder / "status.json").exists():
        _write(folder, f"the process ended with {process.exitcode}")
    reason = json.loads((folder / "status.json").read_text())["reason"]
    print(f"{exporter.name} {folder.name}: {reason or 'ok'} ({time.monotonic() - began:.0f} s)", flush=True)


def _isolated(function: Export, source: Path, folder: Path) -> None:
    """Runs the exporter in the forked process."""
    with (folder / "log.txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            function(source, folder)
            for name in BESIDE:
                if (source / name).exists() and not (folder / name).exists():
                    shutil.copy(source / name, folder)
            _write(folder, None if (folder / "model.onnx").exists() else "no model.onnx was written")
        except BaseException as error:
            traceback.print_exc()
            _write(folder, reason(error))
        sys.stdout.flush()
        sys.stderr.flush()


def reason(error: BaseException) -> str:
    """Returns the first line of an exception, or of the exception that caused it, with its type."""
    while error.__cause__:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _write(folder: Path, reason: str | None) -> None:
    (folder / "status.json").write_text(json.dumps({"reason": reason}))


def main() -> None:
    """Exports what the arguments ask for."""
    options = argparse.ArgumentParser()
    options.add_argument("root", type=Path)
    options.add_argument("--exporter", required=True, choices=[each.name for each in EXPORTERS])
    options.add_argument("--only", action="append")
    options.add_argument("--reuse", action="store_true")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    # A forked process cannot use the threads of its parent.
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    exporter = next(each for each in EXPORTERS if each.name == given.exporter)
    for family in families(given.only):
        source = given.root / exporter.source / family.name
        folder = given.root / exporter.name / family.name
        if not exporter.takes(family) or (given.reuse and (folder / "status.json").exists()):
            continue
        if (source / "reference.json").exists() or (source / "model.onnx").exists():
            export(exporter, source, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / "status.json", folder)
            print(f"{exporter.name} {family.name}: {exporter.source} did not export it", flush=True)


if __name__ == "__main__":
    main()
