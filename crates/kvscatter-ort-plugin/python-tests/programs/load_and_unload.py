"""Loads and unloads the plugin a thousand times each way, and prints how much more memory the process uses.

The custom operators are tested first, because some runtimes never unload the library of a provider.
"""

import gc
import itertools
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from support import heap, models
from support.sessions import LIBRARY, PROVIDER, plugin

# Pools and tables of the runtime fill up in the first blocks.
WARM_UP, BLOCKS, BLOCK = 3, 5, 200


def held() -> dict[str, int]:
    gc.collect()
    heap.libc.malloc_trim(0)
    pages = pathlib.Path("/proc/self/statm").read_text().split()
    return {
        "heap": heap.used(),
        "resident": int(pages[1]) * 4096,
        "mappings": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
        "handles": len(list(pathlib.Path("/proc/self/fd").iterdir())),
        "threads": len(list(pathlib.Path("/proc/self/task").iterdir())),
    }


def is_loaded() -> bool:
    return pathlib.Path(LIBRARY).name in pathlib.Path("/proc/self/maps").read_text()


def registration() -> None:
    ort.register_execution_provider_library(PROVIDER, LIBRARY)
    ort.unregister_execution_provider_library(PROVIDER)


def operators() -> None:
    ort.SessionOptions().register_custom_ops_library(LIBRARY)


def session() -> None:
    """Registers the provider, runs a session of each kind with valid and invalid input, and unregisters."""
    ort.register_execution_provider_library(PROVIDER, LIBRARY)
    for model in MODELS:
        made = plugin(model, operators=True)
        (present,) = made.run(None, FEED)
        assert present[0, 3, 0] == 5
        try:
            made.run(None, FEED | {"write_indices": np.array([4])})
        except Exception as refusal:
            assert "exceeds max_sequence_length" in str(refusal)
        else:
            raise AssertionError("an index past the end was taken")
    del made
    ort.unregister_execution_provider_library(PROVIDER)


MODELS = [models.tensor_scatter(TensorProto.FLOAT, domain=domain) for domain in ("", models.DOMAIN)]
FEED = {
    "past_cache": np.zeros((1, 4, 1), np.float32),
    "update": np.full((1, 1, 1), 5, np.float32),
    "write_indices": np.array([3]),
}

measured = {}
assert not is_loaded()
for work in (operators, registration, session):
    for _ in range(WARM_UP * BLOCK):
        work()
    states = [held()]
    for _ in range(BLOCKS):
        for _ in range(BLOCK):
            work()
        states.append(held())
    measured[work.__name__] = {name: states[-1][name] - states[0][name] for name in states[0]}
    # Tables sometimes grow and shrink by leaps, but a leak grows in most blocks.
    growth = [after["heap"] - before["heap"] for before, after in itertools.pairwise(states)]
    measured[work.__name__]["heap"] = statistics.median(growth) / BLOCK
    measured[work.__name__]["loaded"] = is_loaded()
print(json.dumps(measured))
