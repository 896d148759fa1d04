"""com.kvscatter::TensorScatter, which is ONNX's with ``lengths``. They count the real rows of each sample."""

import numpy as np
import pytest
from onnx import TensorProto

from support import documents, models, sessions
from support.elements import FLOAT16, pack
from support.sessions import CARRIED, assignment, custom, plugin
from support.tensors import Tensor

CACHE, UPDATE = (3, 2, 6, 3), (3, 2, 3, 3)


def model(element, indices=TensorProto.INT64, lengths=TensorProto.INT64, **attributes) -> bytes:
    kinds = {"past_cache": element.code, "update": element.code, "write_indices": indices, "lengths": lengths}
    return models.custom("TensorScatter", kinds, "present_cache", element.code, **attributes)


def inputs(element, indices=None, lengths=None, cache=CACHE, update=UPDATE) -> dict[str, Tensor]:
    made = {"past_cache": Tensor.painted(element, cache, 1), "update": Tensor.painted(element, update, 2)}
    given = {"write_indices": indices, "lengths": lengths}
    return made | {name: Tensor.of(values) for name, values in given.items() if values is not None}


def check(session, feed, **call):
    past = feed["past_cache"]
    want = documents.tensor_scatter(past.array(), feed["update"].array(), **call)
    sessions.check(session, feed, "past_cache", "present_cache", pack(want, past.element))


@pytest.mark.parametrize("element", CARRIED, ids=str)
def test_every_type(element):
    feed = inputs(element, [4, 3, 0], [2, 3, 0])
    check(custom(model(element)), feed, write_indices=[4, 3, 0], lengths=[2, 3, 0])


@pytest.mark.parametrize("mode, indices", [("linear", [5, 3, 0]), ("circular", [5, 16, 2])])
@pytest.mark.parametrize("lengths", [None, [1, 3, 0]])
@pytest.mark.parametrize("with_indices", [True, False])
def test_inputs_are_optional(mode, indices, lengths, with_indices):
    if not with_indices:
        indices = None
    elif mode == "linear" and lengths is None:
        indices = [3, 0, 2]
    declared = {"indices": indices and TensorProto.INT64, "lengths": lengths and TensorProto.INT64}
    session = custom(model(FLOAT16, mode=mode, **declared))
    check(session, inputs(FLOAT16, indices, lengths), write_indices=indices, lengths=lengths, mode=mode)


@pytest.mark.parametrize("axis", [1, 2, 3, -1, -2, -3])
def test_axis(axis):
    cache, update = [4, 5, 6, 7], [4, 5, 6, 7]
    update[axis] = 2
    feed = inputs(FLOAT16, [0, 1, 2, 3], cache=cache, update=update)
    check(custom(model(FLOAT16, lengths=None, axis=axis)), feed, write_indices=[0, 1, 2, 3], axis=axis)


@pytest.mark.parametrize(
    "indices, lengths, words",
    [
        ([0, 4, 0], [3, 3, 3], "write_indices[1] + sequence_length (4 + 3) exceeds max_sequence_length (6)"),
        ([0, -1, 0], [3, 3, 3], "write_indices[1] = -1 is negative"),
        ([0, 0, 0], [3, 4, 3], "lengths[1] = 4"),
        ([0, 0, 0], [3, 3, -1], "lengths[2] = -1"),
        ([0, 0, 0], [3, 3], "lengths"),
        ([0, 0], [3, 3, 3], "write_indices must have shape [batch_size]"),
        ([0, 7, 0], [3, 0, 3], "(7 + 0) exceeds max_sequence_length (6)"),
    ],
)
def test_refusals_leave_every_byte(indices, lengths, words):
    feed = inputs(FLOAT16, indices, lengths)
    message = sessions.refused(lambda: custom(model(FLOAT16)), feed, "past_cache", "present_cache")
    assert "TensorScatter" in message and words in message


@pytest.mark.parametrize("attributes", [{"mode": "ring"}, {"mode": 3}, {"axis": "one"}])
def test_attributes_are_checked_when_the_session_is_made(attributes):
    with pytest.raises(Exception, match=f"(?i)TensorScatter|attribute.*{next(iter(attributes))}"):
        custom(model(FLOAT16, **attributes))


@pytest.mark.parametrize(
    "past, present",
    [([2, 3, 4, 5], [2, 3, 4, 5]), (["batch", 3, "slots", 5], ["batch", 3, "slots", 5])],
)
def test_shapes_are_inferred(past, present):
    shapes = {"past_cache": past, "update": [*past[:2], 1, past[3]]}
    session = custom(models.with_shapes(model(FLOAT16), shapes))
    assert session.get_outputs()[0].shape == present


@pytest.mark.parametrize(
    "shapes",
    [
        {"past_cache": [2, 3, 4, 5], "update": [2, 3, 5, 5]},
        {"past_cache": [2, 3, 4, 5], "update": [2, 3, 1, 6]},
        {"past_cache": [2, 3, 4, 5], "update": [2, 3, 1]},
        {"past_cache": [2], "update": [1]},
    ],
)
def test_shapes_that_cannot_be_right_are_refused_when_the_session_is_made(shapes):
    with pytest.raises(Exception, match="TensorScatter: "):
        custom(models.with_shapes(model(FLOAT16), shapes))


def test_it_is_found_beside_the_provider_too():
    session = plugin(model(FLOAT16), operators=True)
    assert list(assignment(session).values()) == [["TensorScatter"]]
    check(session, inputs(FLOAT16, [0, 1, 2], [3, 2, 1]), write_indices=[0, 1, 2], lengths=[3, 2, 1])


def test_numpy_arrays():
    past, update = np.zeros((1, 4, 1), np.float16), np.ones((1, 2, 1), np.float16)
    feed = {"past_cache": past, "update": update, "write_indices": np.array([1]), "lengths": np.array([1])}
    assert custom(model(FLOAT16)).run(None, feed)[0].ravel().tolist() == [0, 1, 0, 0]
