"""Makes one virtual environment for each of several versions of ONNX Runtime, with what the tests need.

    python3 environments.py FOLDER VERSION...

An environment that is there is kept as it is, unless what it was made from has changed.
"""

import pathlib
import subprocess
import sys
import venv

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


def make(folder: pathlib.Path, version: str) -> None:
    """The environment of one version."""
    wanted = f"{REQUIREMENTS.read_text()}onnxruntime=={version}\n"
    # Written last: an environment without it was not finished.
    made_from = folder / "requirements.txt"
    if made_from.exists() and made_from.read_text() == wanted:
        return
    print(f"making {folder}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--requirement", REQUIREMENTS, f"onnxruntime=={version}"], check=True)
    made_from.write_text(wanted)


if __name__ == "__main__":
    folder, *versions = sys.argv[1:]
    for version in versions:
        make(pathlib.Path(folder) / version, version)
