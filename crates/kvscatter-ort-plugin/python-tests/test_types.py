"""Element types: those that the built-in kernel takes too, those that only the plugin takes, and the others.

test_cases.py moves every type.
"""

import re

import numpy as np
import pytest
from onnx import TensorProto

from support import models
from support.elements import BUILTIN, FLOAT, PLUGIN_ONLY
from support.sessions import NOT_CARRIED, PROVIDER, assignment, builtin, plugin, run
from support.tensors import Tensor, same

UNSUPPORTED = "Could not find an implementation|not currently registered or supported"

# Rows have 3 elements, so 4-bit rows straddle bytes.
CACHE, UPDATE = (3, 2, 5, 3), (3, 2, 2, 3)


@pytest.mark.needs_builtin
@pytest.mark.parametrize("element", BUILTIN, ids=str)
def test_the_built_in_kernel_agrees(element):
    past, update = Tensor.painted(element, CACHE, 3), Tensor.painted(element, UPDATE, 4)
    inputs = {"past_cache": past, "update": update, "write_indices": Tensor.of([0, 3, 2])}
    ours, theirs = Tensor.garbage(element, CACHE), Tensor.garbage(element, CACHE)
    model = models.tensor_scatter(element.code)
    run(plugin(model), inputs, {"present_cache": ours})
    run(builtin(model), inputs, {"present_cache": theirs})
    same(ours, theirs.bytes())


@pytest.mark.parametrize("element", PLUGIN_ONLY, ids=str)
def test_without_the_plugin_nobody_takes_them(element):
    with pytest.raises(Exception, match=UNSUPPORTED):
        builtin(models.tensor_scatter(element.code))


@pytest.mark.skipif(not NOT_CARRIED, reason="this ONNX Runtime has tensors of all types")
def test_a_type_that_the_runtime_does_not_know_is_refused_when_the_session_is_made():
    for element in NOT_CARRIED:
        with pytest.raises(Exception, match=UNSUPPORTED):
            plugin(models.tensor_scatter(element.code))


@pytest.mark.parametrize("code", [TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128])
def test_strings_and_complex_numbers_are_left_to_others(code):
    try:
        session = plugin(models.tensor_scatter(code))
    except Exception as failure:
        assert re.search(UNSUPPORTED, str(failure))
    else:
        # The built-in kernel of 1.25 takes strings.
        assert PROVIDER not in assignment(session)


def test_nan_payloads_and_negative_zeros_survive():
    bits = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x7FC00000], np.uint32)
    update = Tensor.painted(FLOAT, (1, 4, 1), 0)
    update.data[:] = bits.view(np.uint8)
    past = Tensor.garbage(FLOAT, (1, 6, 1))
    session = plugin(models.tensor_scatter(TensorProto.FLOAT))
    run(
        session,
        {"past_cache": past, "update": update, "write_indices": Tensor.of([1])},
        {"present_cache": past},
    )
    assert (past.array()[0, 1:5, 0] == bits).all()
