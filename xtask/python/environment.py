"""Makes a virtual environment from a lock file, unless it exists.

    python3 environment.py FOLDER LOCK [REQUIREMENT...] [--gigabytes N]

An environment is made again if the lock file, the requirements or this Python has changed, or if it was not finished.
N gigabytes of the disk must be free before anything is downloaded.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import venv


def make(folder: pathlib.Path, lock: pathlib.Path, requirements: list[str], gigabytes: float) -> None:
    """Makes the environment in `folder`."""
    wanted = "\n".join([lock.read_text(), *requirements, f"# Python {sys.version}"])
    # This file is written last, so an environment without it was not finished.
    made_from = folder / "made-from.txt"
    if made_from.exists() and made_from.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise SystemExit(f"{folder} takes {gigabytes:g} GB of disk, and {free:.1f} GB are free")
    print(f"making {folder}", flush=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--requirement", str(lock), *requirements], check=True)
    made_from.write_text(wanted)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("lock", type=pathlib.Path)
    options.add_argument("requirements", nargs="*")
    options.add_argument("--gigabytes", type=float, default=1.0)
    given = options.parse_args()
    make(given.folder, given.lock, given.requirements, given.gigabytes)
