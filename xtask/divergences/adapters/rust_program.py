"""Calls the program of xtask/divergences/rust, whose path is in KVSCATTER_DIVERGENCES. Two adapters use this file."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import numpy_helper

from harness.case import NotPossible


def run(case, library, *options, keeps_cache):
    """Runs a case in a library and returns its outputs. After an error in place, only some libraries keep the cache."""
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["KVSCATTER_DIVERGENCES"], library, case.model.parent, folder, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode not in (0, 1):
            # A panic or a signal ends the process of a program that uses the library.
            sys.stderr.flush()
            os._exit(done.returncode & 0xFF)
        cache = Path(folder) / "cache.pb"
        if cache.exists():
            case.cache[...] = read(cache)
        if done.returncode:
            message = done.stderr.strip()
            if "in-place" in options and not keeps_cache:
                raise NotPossible(f"the cache is gone after an error: {message}")
            raise RuntimeError(message)
        outputs = [read(Path(folder) / f"output_{number}.pb") for number in range(len(case.outputs))]
        return {"outputs": outputs, "same_memory": "same_memory" in done.stdout}


def read(path):
    return numpy_helper.to_array(onnx.load_tensor(path))
