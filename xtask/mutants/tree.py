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


def update(tree: Path, of: Path = ROOT) -> None:
    """Makes the copy equal to another tree. Files that are equal keep their times, so they are not rebuilt."""
    wanted = set(_files(of))
    for name in wanted:
        source, copy = of / name, tree / name
        content = source.read_bytes()
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    for copy in sorted(tree.rglob("*")):
        if copy.is_file() and str(copy.relative_to(tree)) not in wanted:
            copy.unlink()


def digest(tree: Path, below: str = "") -> str:
    """Returns a number for the files of a copy below a folder, or for all its files."""
    total = hashlib.sha256()
    for name in sorted(_files(tree)):
        if name.startswith(below):
            total.update(f"{name}\n".encode())
            total.update((tree / name).read_bytes())
    return total.hexdigest()[:16]


def _files(tree: Path) -> Iterator[str]:
    """Lists the files of a copy, or those that git tracks or would track in the repository."""
    if tree != ROOT:
        return (str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return (name for name in names.split("\0") if name and (ROOT / name).is_file())
