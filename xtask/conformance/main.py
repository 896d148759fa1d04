"""Writes the conformance corpus and the tables of its page, or checks that they are current.

Called by `cargo xtask conformance`.
"""

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import node_tests
import page

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "conformance"


def main() -> None:
    """Runs all parts. With --check, the corpus and its page are not written, and a difference is an error."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--command", type=Path, required=True, help="the kvscatter command")
    options.add_argument("--check", action="store_true", help="compare instead of writing")
    options.add_argument(
        "--node-tests", type=Path, required=True, help="the file for node tests in onnx's style"
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder) / "corpus"
        subprocess.run([given.command, "cases", "--conformance", "-o", generated], check=True)
        write = {CORPUS / "README.md": page.with_tables((CORPUS / "README.md").read_text(), generated)}
        stale = [path for path, text in write.items() if not path.exists() or path.read_text() != text]
        stale += [CORPUS / entry.name for entry in generated.iterdir() if differs(entry, CORPUS / entry.name)]
        if given.check and stale:
            sys.exit(
                f"run cargo xtask conformance: {', '.join(str(path.relative_to(ROOT)) for path in stale)}"
            )
        if not given.check:
            for entry in generated.iterdir():
                replace(entry, CORPUS / entry.name)
            for path, text in write.items():
                path.write_text(text)
    page.check_links(CORPUS, ROOT / "docs" / "semantics.md")
    given.node_tests.parent.mkdir(parents=True, exist_ok=True)
    given.node_tests.write_text(node_tests.source(CORPUS))
    print(f"{node_tests.check(given.node_tests)} node tests for onnx pass its reference: {given.node_tests}")


def differs(generated: Path, checked_in: Path) -> bool:
    """Returns whether a file or folder differs from the checked-in one."""
    if generated.is_file():
        return not checked_in.is_file() or not filecmp.cmp(generated, checked_in, shallow=False)
    names = {path.relative_to(generated) for path in generated.rglob("*")}
    if names != {path.relative_to(checked_in) for path in checked_in.rglob("*")}:
        return True
    files = [name for name in names if (generated / name).is_file()]
    return any(not filecmp.cmp(generated / name, checked_in / name, shallow=False) for name in files)


def replace(generated: Path, checked_in: Path) -> None:
    """Replaces a file or folder."""
    if generated.is_file():
        shutil.copyfile(generated, checked_in)
        return
    shutil.rmtree(checked_in, ignore_errors=True)
    shutil.copytree(generated, checked_in)


if __name__ == "__main__":
    main()
