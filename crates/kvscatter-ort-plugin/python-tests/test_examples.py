"""The examples run as docs/onnxruntime.md describes, and the page shows their output."""

import os
import pathlib
import subprocess
import sys

import pytest

from support.sessions import LIBRARY

ROOT = pathlib.Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "onnxruntime").glob("*.py"))
PAGE = (ROOT / "docs" / "onnxruntime.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_page_says(example):
    command = [sys.executable, "-W", "error", example, os.path.relpath(LIBRARY, ROOT)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in PAGE


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_shows_or_links_the_code_of_an_example(example):
    """The page shows the code of the first example, from the first import on."""
    code = example.read_text()
    shown = f"```python\n{code[code.index('import ') :]}```" in PAGE
    assert shown or example.stem != "in_place"
    assert f"(../{example.relative_to(ROOT)})" in PAGE
