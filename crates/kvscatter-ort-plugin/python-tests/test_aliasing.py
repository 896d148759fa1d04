"""Writes in place touch no other memory. Addresses, page protection and the memory of a run show it."""

import ctypes
import pathlib
import signal
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

from support import models
from support.sessions import plugin

PROGRAMS = pathlib.Path(__file__).parent / "programs"


def program(name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, PROGRAMS / name, *arguments], capture_output=True, text=True)


def test_one_value_as_past_and_present_is_written_where_it_lies():
    session = plugin(models.tensor_scatter(TensorProto.FLOAT))
    cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 4, 1), np.float32))
    # The address does not change, even if the runtime replaces the value afterwards.
    memory = (ctypes.c_float * 8).from_address(cache.data_ptr())
    binding = session.io_binding()
    binding.bind_ortvalue_input("past_cache", cache)
    binding.bind_ortvalue_output("present_cache", cache)
    for step, written in enumerate([[1, 0, 0, 0, 0, 2, 0, 0], [1, 2, 0, 0, 0, 2, 3, 0]]):
        binding.bind_cpu_input("update", np.array([[[1]], [[2]]], np.float32) + step)
        binding.bind_cpu_input("write_indices", np.array([0, 1]) + step)
        session.run_with_iobinding(binding)
        assert list(memory) == written


def test_only_the_planned_pages_are_written():
    done = program("protected_pages.py", "in-place")
    assert done.returncode == 0, done.stderr


def test_the_proof_by_protection_would_notice_a_stray_write():
    assert program("protected_pages.py", "functional").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("domain", ["ai.onnx", models.DOMAIN])
@pytest.mark.parametrize("consumers", [1, 2])
def test_an_intermediate_cache_is_written_where_it_is_unless_someone_else_reads_it(domain, consumers):
    done = program("peak_memory.py", domain, str(consumers))
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - consumers) < 0.1
