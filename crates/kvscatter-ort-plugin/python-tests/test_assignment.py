"""Which provider takes which node."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from support import models
from support.sessions import (
    HAS_BUILTIN,
    LIBRARY,
    PROVIDER,
    add_provider,
    assignment,
    builtin,
    options,
    plugin,
)

MODEL = models.tensor_scatter(TensorProto.FLOAT)


def test_the_library_offers_one_device_and_names_itself():
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    assert len(devices) == 1
    assert devices[0].device.type == ort.OrtHardwareDeviceType.CPU
    assert devices[0].ep_vendor == "kvscatter"


def test_a_tensor_scatter_is_ours():
    assert assignment(plugin(MODEL)) == {PROVIDER: ["TensorScatter"]}


def test_everything_else_is_left_to_others():
    nodes = [
        helper.make_node("Neg", ["past_cache"], ["a"]),
        helper.make_node("TensorScatter", ["a", "update"], ["b"]),
        helper.make_node("Neg", ["b"], ["present_cache"]),
    ]
    values = [models.value(name, TensorProto.FLOAT) for name in ("past_cache", "update", "present_cache")]
    session = plugin(models.model(nodes, values[:2], values[2:]))
    assert assignment(session) == {PROVIDER: ["TensorScatter"], "CPUExecutionProvider": ["Neg", "Neg"]}


def test_a_session_without_the_provider_is_untouched():
    if HAS_BUILTIN:
        assert assignment(builtin(MODEL)) == {"CPUExecutionProvider": ["TensorScatter"]}
    else:
        with pytest.raises(Exception, match="Could not find an implementation"):
            builtin(MODEL)


@pytest.mark.needs_builtin
def test_the_provider_can_be_asked_for_by_name():
    providers = [PROVIDER, "CPUExecutionProvider"]
    session = ort.InferenceSession(MODEL, options(), providers=providers, enable_fallback=0)
    assert session.get_providers()[0] == PROVIDER
    assert assignment(session) == {PROVIDER: ["TensorScatter"]}


def add_and_make(**entries: str) -> ort.InferenceSession:
    made = options()
    add_provider(made, **entries)
    return ort.InferenceSession(MODEL, made, enable_fallback=0)


def test_an_option_that_there_is_none_of_is_refused():
    with pytest.raises(
        Exception, match=f"{PROVIDER} has no option threads, its options are attention and fusion"
    ):
        add_and_make(threads="2")


@pytest.mark.parametrize("value", ["", "On", "true", "off "])
def test_a_value_that_there_is_none_of_is_refused(value):
    with pytest.raises(Exception, match=f"{PROVIDER}: attention must be 'on' or 'off', got '{value}'"):
        add_and_make(attention=value)


def test_plain_run_with_numpy_arrays():
    past, update = np.zeros((2, 4, 1), np.float32), np.ones((2, 1, 1), np.float32)
    inputs = {"past_cache": past, "update": update, "write_indices": np.array([3, 0])}
    (present,) = plugin(MODEL).run(None, inputs)
    assert present.ravel().tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert not past.any()


def test_the_library_under_a_second_name_serves_both():
    """The library is registered twice. Unregistering one registration keeps the other usable."""
    ort.register_execution_provider_library("second", LIBRARY)
    assert len([device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]) == 2
    ort.unregister_execution_provider_library("second")
    assert assignment(plugin(MODEL)) == {PROVIDER: ["TensorScatter"]}
