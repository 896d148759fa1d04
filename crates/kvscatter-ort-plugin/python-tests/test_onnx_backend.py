"""The official node tests of Attention, with the plugin as the backend. It takes the node of each test."""

import warnings

import pytest
from onnx.backend.test import BackendTest

from support.backend import Backend
from support.sessions import HAS_WINDOWS

with warnings.catch_warnings():
    # The runner computes the data of all operators, and some of it overflows.
    warnings.simplefilter("ignore")
    OFFICIAL = BackendTest(Backend, __name__)

# "expanded" tests have no Attention, but the operators that define it.
OFFICIAL.include("test_attention_").exclude("_expanded")
if not HAS_WINDOWS:
    OFFICIAL.exclude("_window")

# pytest would collect a class of the module itself.
CASES = [cases for name, cases in OFFICIAL.test_cases.items() if name == "OnnxBackendNodeModelTest"]
NAMES = [
    name
    for name, test in vars(CASES[0]).items()
    if name.startswith("test_") and not getattr(test, "__unittest_skip__", False)
]


@pytest.mark.parametrize("name", NAMES)
def test_official(name):
    getattr(CASES[0](name), name)()


def test_none_is_missing():
    assert len(NAMES) == (93 if HAS_WINDOWS else 82)
