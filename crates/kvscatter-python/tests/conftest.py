"""Settings that JAX reads when it is first used."""

import os

# Tests of sharded arrays need several devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
