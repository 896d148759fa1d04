"""Runs the ``kvscatter`` command under test. ``cargo xtask models`` names it in KVSCATTER_COMMAND."""

import os
import pathlib
import subprocess

COMMAND = os.environ["KVSCATTER_COMMAND"]
ROOT = pathlib.Path(__file__).parents[4]
TESTDATA = ROOT / "testdata"


def kvscatter(*arguments: object, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the command, which must end with this exit code and without a panic."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert "panicked" not in done.stderr, done.stderr
    assert done.returncode == exit_code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def convert(model: pathlib.Path, out: pathlib.Path, slots: int, *options: str) -> pathlib.Path:
    """Converts the model to linear caches of that many slots, at ``out``."""
    kvscatter("convert", model, "-o", out, "--max-seq", slots, "--window", "mask", *options)
    return out
