"""Settings that JAX reads when it is first used, and a folder for conversions."""

import os
from pathlib import Path

import pytest

# Tests of sharded arrays need several devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(autouse=True, scope="session")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder in which conversions are kept, which must not be that of the user."""
    folder = tmp_path_factory.mktemp("conversions")
    os.environ["KVSCATTER_CACHE"] = str(folder)
    return folder
