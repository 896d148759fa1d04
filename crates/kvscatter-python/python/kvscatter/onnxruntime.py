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

from kvscatter import _plugin
from kvscatter._plugin import PROVIDER

__all__ = ["devices", "library", "register"]


def __dir__() -> list[str]:
    return __all__


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
    return _plugin.library()


def _registered() -> list[Any]:
    runtime = _plugin.required("onnxruntime", OLDEST)
    _plugin.register(runtime, lambda: bool(_devices(runtime)))
    return _devices(runtime)


def _devices(runtime: ModuleType) -> list[Any]:
    return [device for device in runtime.get_ep_devices() if device.ep_name == PROVIDER]
