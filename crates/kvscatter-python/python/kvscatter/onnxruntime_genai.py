"""Lets models of ONNX Runtime GenAI use kvscatter's attention.

The compiled module of this package is a plugin for ONNX Runtime, and ``onnxruntime_genai`` 0.13 and newer can load
it. Importing this module does not import ``onnxruntime_genai``. A program imports both modules and calls `use`::

    config = onnxruntime_genai.Config("model-folder")
    kvscatter.onnxruntime_genai.use(config)
    model = onnxruntime_genai.Model(config)
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

from kvscatter import _native, _plugin
from kvscatter._plugin import PROVIDER

if TYPE_CHECKING:
    import onnxruntime_genai  # pyright: ignore[reportMissingImports]

__all__ = ["register", "use"]


def __dir__() -> list[str]:
    return __all__


OLDEST = (0, 13)
# The variable that ``onnxruntime_genai`` sets to the path of the ONNX Runtime that its compiled part loads.
RUNTIME = "ORT_LIB_PATH"


def use(config: onnxruntime_genai.Config) -> None:
    """Lets the models that are created with this configuration use the plugin.

    Call this before ``Model(config)``, after ``clear_providers`` and before other providers are appended. More calls
    with the same configuration change nothing. The first call of a process registers the plugin as `register` does.
    Nodes that the plugin does not take run as without it.

    Args:
        config: The configuration, an ``onnxruntime_genai.Config``.

    Raises:
        ImportError: ``onnxruntime_genai`` cannot be imported, or is older than 0.13.
        SessionError: The ONNX Runtime of ``onnxruntime_genai`` cannot be used, or is older than 1.24.
        TypeError: The argument is not a configuration.
    """
    genai = _genai()
    if not isinstance(config, genai.Config):
        raise TypeError(f"config must be an onnxruntime_genai.Config, not {type(config).__name__}")
    config.append_provider(_registered(genai))


def register() -> str:
    """Registers the plugin in the ONNX Runtime of ``onnxruntime_genai``, unless it is registered already.

    Any thread may call this, any number of times. Another build that is registered is kept. `use`
    calls this too, so only programs that name the execution provider in ``genai_config.json`` need it. For sessions
    of the module ``onnxruntime``, call `kvscatter.onnxruntime.register`. A process may call both.

    Returns:
        The name of the execution provider, for ``append_provider`` of a ``Config``.

    Raises:
        ImportError: For the same reasons as `use`.
        SessionError: For the same reasons as `use`.
    """
    return _registered(_genai())


def _registered(genai: ModuleType) -> str:
    runtime = os.environ.get(RUNTIME)
    if runtime is None:
        raise ImportError(f"onnxruntime_genai sets {RUNTIME} when it is imported, and it is not set")
    _plugin.register(genai, lambda: _native.has_plugin(runtime))
    return PROVIDER


def _genai() -> ModuleType:
    return _plugin.required("onnxruntime_genai", OLDEST)
