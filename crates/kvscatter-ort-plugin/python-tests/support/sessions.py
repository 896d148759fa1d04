"""Sessions with the plugin's execution provider, with its custom operators, or with neither."""

import gc
import os
from collections.abc import Callable

import onnxruntime as ort
import pytest

from support.elements import ALL, BY_NAME
from support.tensors import Tensor, same

PROVIDER = "KvscatterExecutionProvider"
LIBRARY = os.environ["KVSCATTER_ORT_LIBRARY"]
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])

# ONNX Runtime has a TensorScatter kernel from this version on.
HAS_BUILTIN = VERSION >= (1, 25)

# ONNX Runtime's Attention caps scores before the mask from this version on, as the standard does.
CAPS_BEFORE_MASK = VERSION >= (1, 27)

# ONNX Runtime has operator set 25 from this version on. Earlier versions read it as 24, and refuse windows.
HAS_WINDOWS = VERSION >= (1, 32)

# NOT_CARRIED are the types that this version of ONNX Runtime has no tensors of.
NOT_CARRIED = [] if VERSION >= (1, 31) else [BY_NAME["float8e8m0"]]
CARRIED = [element for element in ALL if element not in NOT_CARRIED]


def options(threads: int = 1, **entries: str) -> ort.SessionOptions:
    """Returns the options of a session that records which provider took which node."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 4
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, entry in entries.items():
        made.add_session_config_entry(key, entry)
    return made


def add_provider(made: ort.SessionOptions, **entries: str) -> None:
    """Lets the plugin take nodes of the sessions that are made with these options, and sets its options."""
    made.add_provider_for_devices(
        [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER], entries
    )


def plugin(
    model, threads: int = 1, operators: bool = False, entries=None, **provider
) -> ort.InferenceSession:
    """Returns a session in which the plugin takes every node that it can. ``entries`` are options of the
    session, and ``provider`` those of the plugin."""
    made = options(threads, **(entries or {}))
    add_provider(made, **provider)
    if operators:
        made.register_custom_ops_library(LIBRARY)
    return ort.InferenceSession(model, made, enable_fallback=0)


def builtin(model, threads: int = 1) -> ort.InferenceSession:
    """Returns a session with ONNX Runtime's own kernels alone."""
    return ort.InferenceSession(
        model, options(threads), providers=["CPUExecutionProvider"], enable_fallback=0
    )


def custom(model, threads: int = 1) -> ort.InferenceSession:
    """Returns a session with the custom operators and without the provider."""
    made = options(threads)
    made.register_custom_ops_library(LIBRARY)
    return ort.InferenceSession(model, made, providers=["CPUExecutionProvider"], enable_fallback=0)


def unregister() -> None:
    """Unregisters the library. All its sessions must be gone, even those that exceptions keep alive."""
    gc.collect()
    ort.unregister_execution_provider_library(PROVIDER)


def assignment(session: ort.InferenceSession) -> dict[str, list[str]]:
    """Returns the operators that each provider took."""
    taken: dict[str, list[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        taken.setdefault(subgraph.ep_name, []).extend(node.op_type for node in subgraph.get_nodes())
    return taken


def run(session: ort.InferenceSession, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
    """Runs a session once over memory of the test. One tensor may be both input and output."""
    binding = session.io_binding()
    for name, tensor in inputs.items():
        binding.bind_input(name, "cpu", 0, tensor.element.code, tensor.shape, tensor.address)
    for name, tensor in outputs.items():
        binding.bind_output(name, "cpu", 0, tensor.element.code, tensor.shape, tensor.address)
    session.run_with_iobinding(binding)


def check(
    session: ort.InferenceSession, inputs: dict[str, Tensor], past: str, present: str, want: bytes
) -> None:
    """Checks one call in the functional form, and then one in place. ``past`` and ``present`` are names."""
    cache = inputs[past]
    before, apart = cache.bytes(), Tensor.garbage(cache.element, cache.shape)
    run(session, inputs, {present: apart})
    same(apart, want)
    same(cache, before)
    run(session, inputs, {present: cache})
    same(cache, want)


def refused(
    make: Callable[[], ort.InferenceSession], inputs: dict[str, Tensor], past: str, present: str
) -> str:
    """Checks that a call in place, or making its session, fails and changes no byte. Returns the message."""
    before = inputs[past].bytes()
    with pytest.raises(Exception) as caught:
        run(make(), inputs, {present: inputs[past]})
    same(inputs[past], before)
    return str(caught.value)
