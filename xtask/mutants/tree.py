"""A copy of the repository in which mutants are made, so that the repository itself never has one.

The copy has a build folder that is kept. A mutant then costs an incremental build.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What cargo-mutants writes beside the sources.
OUTPUT = "mutants.out"


def update(tree: Path) -> None:
    """Makes the copy equal to the working tree. Files that are equal keep their times, so they are not rebuilt."""
    wanted = set(_files())
    for name in wanted:
        source, copy = ROOT / name, tree / name
        content = source.read_bytes()
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    for copy in sorted(tree.rglob("*")):
        if copy.is_file() and str(copy.relative_to(tree)) not in wanted:
            copy.unlink()


def digest(*below: str) -> str:
    """Returns a number for the files below these folders, or for all files."""
    total = hashlib.sha256()
    for name in _files(*below):
        total.update(f"{name}\n".encode())
        total.update((ROOT / name).read_bytes())
    return total.hexdigest()[:16]


def _files(*below: str) -> Iterator[str]:
    """Lists the files that git tracks or would track."""
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *below]
    names = subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return (name for name in sorted(names.split("\0")) if name and (ROOT / name).is_file())
