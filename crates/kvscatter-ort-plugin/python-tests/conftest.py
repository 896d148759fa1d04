"""Loads the plugin once for all tests, as an application does.

``cargo xtask ort`` sets four variables. KVSCATTER_ORT_LIBRARY is the path of the plugin. KVSCATTER_COMMAND is
the command line tool that writes the oracle's cases. KVSCATTER_ATTENTION_CASES and KVSCATTER_GROUP_QUERY_CASES are
the programs that write those of attention.
"""

import os
import subprocess

# The wheels since 1.29 queue telemetry events in memory and send them from a thread. Both would count as the
# plugin's in tests of memory and of threads. The runtime reads this once, when it is imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort
import pytest

from support.sessions import HAS_BUILTIN, LIBRARY, PROVIDER, unregister

ort.set_default_logger_severity(4)


def pytest_report_header():
    return f"onnxruntime {ort.__version__}, {LIBRARY}"


@pytest.fixture(scope="session", autouse=True)
def library():
    """Registers the plugin while the tests run."""
    ort.register_execution_provider_library(PROVIDER, LIBRARY)
    yield LIBRARY
    unregister()


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """Returns folders of adversarial cases with the oracle's answers, for every idea and element type."""
    folder = tmp_path_factory.mktemp("oracle") / "cases"
    command = [os.environ["KVSCATTER_COMMAND"], "cases", "--output", folder, "--seed", "24", "--count", "624"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def attention_cases(tmp_path_factory):
    """Returns a file of cases of attention with the oracle's answers. It has every pair of a theme and an
    element type twice, and every rule that a call can break."""
    path = tmp_path_factory.mktemp("oracle") / "attention.jsonl"
    subprocess.run([os.environ["KVSCATTER_ATTENTION_CASES"], path, "24", "234"], check=True)
    return path


@pytest.fixture(scope="session")
def group_query_cases(tmp_path_factory):
    """Returns a file of cases of GroupQueryAttention, with the outputs of the model that ``convert`` proves with. Each
    phase occurs once with each rotation and each pair of types."""
    path = tmp_path_factory.mktemp("model") / "group_query.jsonl"
    subprocess.run([os.environ["KVSCATTER_GROUP_QUERY_CASES"], path, "24", "225"], check=True)
    return path


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("needs_builtin") and not HAS_BUILTIN:
            item.add_marker(
                pytest.mark.skip(reason=f"onnxruntime {ort.__version__} has no TensorScatter kernel")
            )
