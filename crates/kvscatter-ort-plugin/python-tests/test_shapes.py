"""Ranks, axes and shapes that change, compared with the document's rule in NumPy."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto

from support import documents, models, sessions
from support.elements import FLOAT16, pack
from support.sessions import plugin, run
from support.tensors import Tensor, same

SHAPES = [(3, 4), (2, 5, 3), (2, 3, 4, 5), (2, 1, 3, 4, 2), (1, 2, 2, 3, 2, 2)]
AXES = [
    (shape, axis)
    for shape in SHAPES
    for axis in itertools.chain(range(1, len(shape)), range(1 - len(shape), 0))
]


def check(past_shape, rows, indices, axis, mode):
    """Checks calls in place and in the functional form in one session, so that shapes can change."""
    update_shape = list(past_shape)
    update_shape[axis] = rows
    past, update = Tensor.painted(FLOAT16, past_shape, 5), Tensor.painted(FLOAT16, update_shape, 6)
    inputs = {"past_cache": past, "update": update, "write_indices": Tensor.of(indices)}
    present = documents.tensor_scatter(past.array(), update.array(), indices, axis=axis, mode=mode)
    session = plugin(models.tensor_scatter(FLOAT16.code, axis=axis, mode=mode))
    sessions.check(session, inputs, "past_cache", "present_cache", pack(present, FLOAT16))


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("shape, axis", AXES)
def test_every_axis(shape, axis, mode):
    capacity = shape[axis]
    for rows in range(capacity + 1):
        last = capacity - rows if mode == "linear" else 3 * capacity
        check(shape, rows, np.arange(shape[0]) * 7 % (last + 1), axis, mode)


def test_an_empty_input_name_is_no_input():
    names = ["past_cache", "update", ""]
    node = models.helper.make_node("TensorScatter", names, ["present_cache"])
    values = [models.value(name, TensorProto.FLOAT16) for name in ("past_cache", "update", "present_cache")]
    past, update = Tensor.painted(FLOAT16, (2, 4, 1), 1), Tensor.painted(FLOAT16, (2, 2, 1), 2)
    want = documents.tensor_scatter(past.array(), update.array())
    session = plugin(models.model([node], values[:2], values[2:]))
    run(session, {"past_cache": past, "update": update}, {"present_cache": past})
    same(past, pack(want, FLOAT16))


def test_a_session_takes_one_shape_after_the_other():
    """A decoder uses one session for a prefill, steps, another batch, and the first batch again."""
    session = plugin(models.tensor_scatter(FLOAT16.code, mode="circular"))
    for turn, (batch, rows) in enumerate(
        [(1, 7), (1, 1), (1, 1), (3, 2), (1, 1), (3, 2), (2, 8), (1, 7)] * 3
    ):
        past = Tensor.painted(FLOAT16, (batch, 2, 8, 4), turn)
        update = Tensor.painted(FLOAT16, (batch, 2, rows, 4), 100 + turn)
        indices = [turn * (sample + 1) for sample in range(batch)]
        want = documents.tensor_scatter(past.array(), update.array(), indices, mode="circular")
        inputs = {"past_cache": past, "update": update, "write_indices": Tensor.of(indices)}
        run(session, inputs, {"present_cache": past})
        same(past, pack(want, FLOAT16))
