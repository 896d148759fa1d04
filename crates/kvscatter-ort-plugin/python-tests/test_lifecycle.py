"""Loading and unloading the plugin leaves no memory, handles or threads, in any order."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from support import models
from support.sessions import LIBRARY, PROVIDER, VERSION, plugin, unregister

PROGRAM = pathlib.Path(__file__).parent / "programs" / "load_and_unload.py"


def test_a_thousand_loads_and_unloads_leave_nothing():
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    # The unit is bytes a cycle. No allocation is this small.
    for name, grown in measured.items():
        assert grown["heap"] < 16, (name, measured)
        assert grown["resident"] < 2 << 20, measured
        assert grown["handles"] == 0 and grown["threads"] == 0, measured
        # A library that stays loaded has four mappings. If each cycle left one, there would be thousands.
        # On a busy machine, threads of sessions take more arenas of malloc, which stay. They were 12 mappings
        # once.
        assert grown["mappings"] < (64 if name == "session" else 4), measured
    assert not measured["operators"]["loaded"], measured
    # Up to 1.26, each registration keeps a reference to the library until the process ends.
    is_kept = VERSION < (1, 27)
    assert measured["registration"]["loaded"] == measured["session"]["loaded"] == is_kept, measured


def test_a_session_that_cannot_be_made_leaves_the_library_usable():
    for _ in range(10):
        try:
            plugin(models.tensor_scatter(TensorProto.FLOAT, mode="ring"))
        except Exception as failure:
            assert "mode must be" in str(failure)
        else:
            raise AssertionError("a model of mode ring was taken")
    past = np.zeros((1, 2, 1), np.float32)
    feed = {"past_cache": past, "update": np.ones((1, 1, 1), np.float32), "write_indices": np.array([1])}
    assert plugin(models.tensor_scatter(TensorProto.FLOAT)).run(None, feed)[0].ravel().tolist() == [0, 1]


def test_operators_stay_when_the_provider_goes():
    """Sessions that use only the custom operators do not need the registration that the provider needs."""
    unregister()
    try:
        made = ort.SessionOptions()
        made.register_custom_ops_library(LIBRARY)
        model = models.tensor_scatter(TensorProto.FLOAT, domain=models.DOMAIN)
        session = ort.InferenceSession(model, made, providers=["CPUExecutionProvider"], enable_fallback=0)
        past = np.zeros((1, 2, 1), np.float32)
        feed = {"past_cache": past, "update": np.ones((1, 1, 1), np.float32), "write_indices": np.array([1])}
        assert session.run(None, feed)[0].ravel().tolist() == [0, 1]
    finally:
        ort.register_execution_provider_library(PROVIDER, LIBRARY)
    assert session.run(None, feed)[0].ravel().tolist() == [0, 1]
