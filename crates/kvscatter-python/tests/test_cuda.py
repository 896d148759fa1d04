"""Tests `kvscatter.cuda`, here without a driver, and in `cuda/` with the simulated driver of
kvscatter-cuda."""

from __future__ import annotations

import ast
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import kvscatter
import support
from kvscatter import cuda

HERE = pathlib.Path(__file__).parent
DRIVER = HERE.parents[1] / "kvscatter-cuda/tests/fake/driver.cpp"


def run(*words: str | pathlib.Path, libraries: pathlib.Path, **variables: str) -> str:
    """Runs a Python process that looks for the driver in this folder first."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), **variables}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: The simulated driver without its functions for tests, like a real driver whose device and host share memory.
AS_OF_A_DEVICE = f"""
#define fake_fail not_fail
#define fake_calls not_calls
#include "{DRIVER}"
extern "C" int cuMemAllocManaged(u64* address, size_t bytes, unsigned) {{ return cuMemAlloc_v2(address, bytes); }}
"""


def run_all(source: pathlib.Path, folder: pathlib.Path) -> str:
    """Runs the tests in `cuda/` on this driver."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    library = folder / "libcuda.so.1"
    options = ["-std=c++17", "-O1", "-DKVSCATTER_SHIM", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)
    words = ["--quiet", "-rs", "-p", "no:cacheprovider", "--config-file", str(HERE.parent / "pyproject.toml")]
    tests = [*("-m", "pytest", *words), str(HERE / "cuda")]
    return run(*tests, libraries=folder, KVSCATTER_CUDA_DRIVER=str(library))


def test_on_the_tests_driver(tmp_path: pathlib.Path) -> None:
    out = run_all(DRIVER, tmp_path)
    assert "passed" in out and "skipped" not in out, out


def test_as_on_a_device(tmp_path: pathlib.Path) -> None:
    """`cargo xtask cuda-gpu` runs the tests in this way. PyTorch has no device here."""
    source = tmp_path / "driver.cpp"
    source.write_text(AS_OF_A_DEVICE, encoding="utf-8")
    out = run_all(source, tmp_path)
    reasons = {line.split(": ", 1)[1] for line in out.split("\n") if line.startswith("SKIPPED")}
    of_torch = {"this Python has no PyTorch", "PyTorch finds no device"}
    assert "passed" in out and reasons - of_torch == {"needs the simulated driver"}, out


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("docs/python/cuda.md", 7 + 5),
        ("crates/kvscatter-python/README.md", 3),
    ],
)
def test_pages_call_what_there_is(page: str, count: int) -> None:
    """The examples need a device, so this only checks that they are Python and use names and keywords that
    exist."""
    text = (HERE.parents[2] / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    calls = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    called = {"cuda": cuda, "kvscatter.cuda": cuda, "write": cuda.Write, "write.status": cuda.Status}
    found = 0
    for call in calls:
        assert isinstance(call.func, ast.Attribute | ast.Name), ast.unparse(call)
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in called:
            owner = called[ast.unparse(call.func.value)]
            bound = [None] * (len(call.args) + inspect.isclass(owner))
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(getattr(owner, call.func.attr)).bind(*bound, **keywords)
            found += 1
    for line in re.findall(r"^\| `(prepare\w*)\((.*?)\)`", text, re.MULTILINE):
        assert [*inspect.signature(getattr(cuda, line[0])).parameters][: line[1].count(",") + 1] == line[
            1
        ].split(", ")
        found += 1
    assert found == count


def test_no_driver_is_an_error_of_this_package(tmp_path: pathlib.Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    code = """
import kvscatter
try:
    kvscatter.cuda.driver_version()
except kvscatter.CudaError as error:
    print(error.kind, error.argument, isinstance(error, RuntimeError))
    print(error)
"""
    facts, message, _ = run("-c", code, libraries=tmp_path).split("\n")
    assert facts == "no_driver None True"
    assert message.startswith("cannot use the CUDA driver libcuda.so.1:") and "NVIDIA's driver" in message


def test_everything_calls_itself_what_people_call_it() -> None:
    for name in cuda.__all__:
        assert getattr(cuda, name).__name__ == name
    assert (cuda.Write.__module__, cuda.Status.__module__) == ("kvscatter.cuda", "kvscatter.cuda")
    with pytest.raises(TypeError, match=r"^prepare\(\) missing 1 required positional argument"):
        cuda.prepare()  # type: ignore[call-arg]


def test_importing_loads_no_driver(tmp_path: pathlib.Path) -> None:
    code = """
import kvscatter.cuda, pathlib, sys
loaded = pathlib.Path("/proc/self/maps").read_text()
print("libcuda" in loaded, sorted({"torch", "cupy", "jax"} & set(sys.modules)))
"""
    assert run("-c", code, libraries=tmp_path) == "False []\n"


def test_arrays_that_are_on_no_device_need_no_driver_to_be_refused() -> None:
    cache, update = np.zeros((2, 4, 8)), np.zeros((2, 1, 8))
    error = support.refused("device", "cache", cuda.prepare, [(cache, update)], of=kvscatter.DeviceError)
    assert str(error) == "cache is on the CPU: must be on a CUDA device"
    assert error.device == "the CPU"
    error = support.refused("not_an_array", "cache", cuda.prepare, [([1.0], update)])
    assert "__cuda_array_interface__" in str(error)
    support.refused("not_a_pair", "pairs", cuda.prepare, [cache])
    support.refused("keyword_type", "triples", cuda.prepare_present, [(cache, update)])
    support.refused("no_pairs", "pairs", cuda.prepare, [], of=kvscatter.OptionError)
    support.refused("no_pairs", "triples", cuda.prepare_present, [], of=kvscatter.OptionError)
