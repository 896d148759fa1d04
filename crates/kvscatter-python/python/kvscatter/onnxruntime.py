"""Registers kvscatter's kernels in the installed ONNX Runtime.

The compiled module of this package is a plugin for ONNX Runtime 1.24 and newer. Sessions that name its
execution provider run the nodes that it takes in kvscatter. Importing this module does not import
``onnxruntime``.

>>> import onnxruntime
>>> import kvscatter
>>> model = "testdata/mobius-llama-static/model.onnx"
>>> providers = [kvscatter.onnxruntime.register(), "CPUExecutionProvider"]
>>> session = onnxruntime.InferenceSession(model, providers=providers)
>>> session.get_providers()
['KvscatterExecutionProvider', 'CPUExecutionProvider']

The names of providers are enough from onnxruntime 1.25 on. For 1.24, options take the devices:

>>> options = onnxruntime.SessionOptions()
>>> options.add_provider_for_devices(kvscatter.onnxruntime.devices(), {})
>>> session = onnxruntime.InferenceSession(model, options)
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kvscatter import _native

__all__ = ["devices", "library", "register"]


def __dir__() -> list[str]:
    return __all__


PROVIDER = "KvscatterExecutionProvider"
OLDEST = (1, 24)


def register() -> str:
    """Registers the plugin in ONNX Runtime, unless it is registered already.

    Any thread may call this, any number of times. If another build of the plugin is registered, it is kept.

    Returns:
        The name of the execution provider, for ``providers`` of an ``InferenceSession``.

    Raises:
        ImportError: ``onnxruntime`` is not installed, or is older than 1.24.
    """
    _registered()
    return PROVIDER


def devices() -> list[Any]:
    """Registers the plugin as `register` does, and returns its devices.

    Returns:
        The devices, each an ``OrtEpDevice``, for ``add_provider_for_devices`` of ``SessionOptions``.

    Raises:
        ImportError: For the same reasons as `register`.
    """
    return _registered()


def library() -> str:
    """Returns the path of the plugin.

    ``SessionOptions.register_custom_ops_library`` takes it, and adds the operators of the domain
    ``com.kvscatter`` to sessions. ``register`` is not needed for this.
    """
    return str(_native.__file__)


def _registered() -> list[Any]:
    runtime = _runtime()
    if not _devices(runtime):
        try:
            runtime.register_execution_provider_library(PROVIDER, library())
        except Exception:
            # Another thread or a signal handler may have registered it meanwhile. A lock would not help, because a
            # handler would wait for the code that it interrupts.
            if not _devices(runtime):
                raise
    return _devices(runtime)


def _devices(runtime: ModuleType) -> list[Any]:
    return [device for device in runtime.get_ep_devices() if device.ep_name == PROVIDER]


def _runtime() -> ModuleType:
    """Imports ONNX Runtime and checks its version."""
    needed = f"kvscatter.onnxruntime needs onnxruntime {OLDEST[0]}.{OLDEST[1]} or newer"
    try:
        import onnxruntime
    except ImportError as missing:
        raise ImportError(f"{needed}: pip install onnxruntime") from missing
    version: str = onnxruntime.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ImportError(f"{needed}, this is {version}")
    module: ModuleType = onnxruntime
    return module
