"""Tests the pages: the example prints the text shown, and the commands work."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from support.command import COMMAND, ROOT, TESTDATA, convert

EXAMPLE = ROOT / "examples" / "models" / "generate.py"
PAGE = (ROOT / "docs" / "models.md").read_text()
GENERATING = (ROOT / "docs" / "generate.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("style", ["optimum-llama", "mobius-llama-dynamic"])
def test_the_example_prints_what_the_page_says(tmp_path, style):
    """Both exports have the same weights, so they print the same."""
    model = convert(TESTDATA / style / "model.onnx", tmp_path / "static.onnx", 64)
    command = [sys.executable, "-W", "error", EXAMPLE, model]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in PAGE
    assert f"(../{EXAMPLE.relative_to(ROOT)})" in PAGE


def commands(page: str) -> list[str]:
    """Returns the lines of shell blocks that run the command on decoders, installed or built. Blocks that install
    packages to fetch weights are left out.
    """
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [
        re.sub(r"cargo run --release (--features \S+ )?-- ", "kvscatter ", line)
        for block in blocks
        if "fetch_and_export.py" not in block
        for line in block.splitlines()
    ]
    ours = re.compile("kvscatter (inspect|convert|certify|lower|generate|run) (testdata|target)/")
    return [line for line in lines if ours.match(line)]


@pytest.mark.parametrize("page", [README, PAGE, GENERATING], ids=["README", "models", "generate"])
def test_the_commands_of_a_page_succeed_in_their_order(tmp_path, page):
    """Writes to another folder, and uses this environment's ONNX Runtime."""
    lines = commands(page)
    assert len(lines) >= 2
    for line in lines:
        # The runtime's folder may itself be below a folder named target.
        line = line.replace("target/onnxruntime", "RUNTIME").replace("target/", f"{tmp_path}/")
        line = line.replace("RUNTIME", os.environ["KVSCATTER_ORT_LIB"])
        done = subprocess.run([COMMAND, *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
