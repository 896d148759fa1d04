"""Checks that an unpacked source distribution has every source file of the crates that it contains.

python3 sdist_files.py FOLDER
"""

import pathlib
import subprocess
import sys

CRATE = "crates/kvscatter-python/"


def missing(folder: pathlib.Path) -> list[str]:
    """Returns the files that Git tracks in the sources of these crates and that are not in the folder."""
    crates = [manifest.parent.relative_to(folder) for manifest in folder.glob("crates/*/Cargo.toml")]
    if not crates:
        raise SystemExit(f"{folder} contains no crates")
    sources = [f"{CRATE}python", *(str(crate / "src") for crate in crates)]
    tracked = subprocess.run(["git", "ls-files", *sources], check=True, capture_output=True, text=True)
    # The modules in Python are beside the crates.
    places = [(path, path.replace(f"{CRATE}python/", "python/")) for path in tracked.stdout.split()]
    return [path for path, place in places if not (folder / place).is_file()]


if __name__ == "__main__":
    absent = missing(pathlib.Path(sys.argv[1]))
    if absent:
        sys.exit("\n".join(f"the source distribution lacks {path}" for path in absent))
