"""The environments of the runtimes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from runtimes import Runtime

HERE = Path(__file__).parent
MAKE = HERE.parent / "python" / "environment.py"


class Failure(Exception):
    """A runtime could not be installed or run. The message is the reason."""


class Environments:
    """Makes environments below one folder."""

    def __init__(self, folder: Path, variables: dict[str, Path]) -> None:
        self._folder, self._variables = folder, variables

    def make(self, runtime: Runtime) -> Path:
        """Makes the environment unless it exists, and returns its interpreter."""
        folder = self._folder / runtime.id
        if runtime.environment:
            folder = self._folder.parents[1] / runtime.environment
        lock = Path(runtime.lock or HERE / "base.txt")
        size = ["--gigabytes", str(runtime.gigabytes)]
        # Several gigabytes of wheels would stay in pip's cache.
        without_cache = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
        done = subprocess.run(
            [sys.executable, MAKE, folder, lock, *runtime.requirements, *size],
            env=without_cache,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise Failure(f"no environment: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return folder / "bin" / "python"

    def variables(self, runtime: Runtime) -> dict[str, str]:
        """Returns the environment variables for the adapter."""
        ours = {name: str(path.resolve()) for name, path in self._variables.items()}
        return {**os.environ, **ours, **runtime.variables, "PYTHONDONTWRITEBYTECODE": "1"}

    @staticmethod
    def installed(python: Path) -> dict[str, str]:
        """Returns the versions of all packages of an environment."""
        pip = [python, "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"]
        done = subprocess.run(pip, check=True, capture_output=True, text=True)
        return {package["name"]: package["version"] for package in json.loads(done.stdout)}
