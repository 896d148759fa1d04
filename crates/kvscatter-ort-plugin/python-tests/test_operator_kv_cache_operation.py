"""com.kvscatter::KVCacheOperation, which is Ascend ATB's. tokenOffset is the length after the write."""

import re

import numpy as np
import pytest
from onnx import TensorProto

from support import documents, models, sessions
from support.elements import BY_NAME, pack
from support.sessions import custom, run
from support.tensors import Tensor, same

TYPES = [BY_NAME[name] for name in ("float16", "bfloat16", "int8")]
HALF = TYPES[0]
PAST = (2, 3, 6, 8)


def model(element=HALF) -> bytes:
    index = TensorProto.INT32
    kinds = {
        "new_kv": element.code,
        "layer_id": index,
        "past": element.code,
        "token_offset": index,
        "seq_len": index,
    }
    return models.custom("KVCacheOperation", kinds, "present", element.code)


def inputs(element, layer, ends, lengths, new=None, past=PAST) -> dict[str, Tensor]:
    ints = {"layer_id": layer, "token_offset": ends, "seq_len": lengths}
    made = {name: Tensor.of(np.array(values, np.int32)) for name, values in ints.items()}
    new = new or (sum(lengths), past[-1])
    return made | {"new_kv": Tensor.painted(element, new, 1), "past": Tensor.painted(element, past, 2)}


def check(session, feed):
    want = documents.kv_cache_operation(**{name: tensor.array() for name, tensor in feed.items()})
    sessions.check(session, feed, "past", "present", pack(want, feed["past"].element))


def refused(feed, element=HALF) -> str:
    return sessions.refused(lambda: custom(model(element)), feed, "past", "present")


@pytest.mark.parametrize("element", TYPES, ids=str)
@pytest.mark.parametrize("layer", [0, 1])
def test_packed_tokens(element, layer):
    check(custom(model(element)), inputs(element, [layer], [6, 3, 2], [2, 3, 1]))


def test_four_dimensions():
    check(custom(model()), inputs(HALF, [1], [6, 2, 4], [2, 2, 2], new=(3, 2, 4, 2)))


@pytest.mark.parametrize(
    "layer, ends, lengths, words",
    [
        ([2], [6, 3, 2], [2, 3, 1], "layer_id = 2"),
        ([-1], [6, 3, 2], [2, 3, 1], "layer_id = -1"),
        ([0, 1], [6, 3, 2], [2, 3, 1], "layer_id"),
        ([0], [7, 3, 2], [2, 3, 1], "token_offset[0] = 7"),
        ([0], [6, 2, 2], [2, 3, 1], "token_offset[1] = 2"),
        ([0], [6, 3], [2, 3, 1], "token_offset"),
        ([0], [6, 5, 2], [3, 3, 0], "seq_len[2] = 0"),
        ([0], [6, 3, 2], [2, 3, 2], "seq_len"),
    ],
)
def test_refusals_leave_every_byte(layer, ends, lengths, words):
    message = refused(inputs(HALF, layer, ends, lengths, new=(6, 8)))
    assert "KVCacheOperation: " in message and words in message


@pytest.mark.parametrize(
    "new, past", [((6, 7), PAST), ((3, 2, 4, 3), PAST), ((6, 8), (3, 6, 8)), ((6, 2, 4), PAST)]
)
def test_shapes_that_do_not_fit(new, past):
    assert "KVCacheOperation: " in refused(inputs(HALF, [0], [2, 2, 2], [2, 2, 2], new=new, past=past))


@pytest.mark.parametrize("name", ["token_offset", "seq_len"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "functional"])
def test_positions_in_the_memory_that_is_written_are_refused(name, in_place):
    """Positions are read again after the first byte has been written."""
    feed = inputs(HALF, [0], [6, 3, 2], [2, 3, 1])
    past = feed["past"]
    present = past if in_place else Tensor.garbage(HALF, PAST)
    feed[name] = present.holding(feed[name].array().view(np.int32), offset=64)
    before = past.bytes(), present.bytes()
    with pytest.raises(Exception, match=f"KVCacheOperation: .*shares memory with that of {name}"):
        run(custom(model()), feed, {"present": present})
    same(past, before[0])
    same(present, before[1])


def test_a_type_that_ascend_does_not_take():
    message = refused(inputs(BY_NAME["float"], [0], [2, 2, 2], [2, 2, 2]), BY_NAME["float"])
    assert re.search("Type Error.*float.*KVCacheOperation", message)


def test_shapes_are_inferred():
    shapes = {"new_kv": ["tokens", 64], "past": [32, "batch", 4096, 64]}
    session = custom(models.with_shapes(model(), shapes))
    assert session.get_outputs()[0].shape == [32, "batch", 4096, 64]


@pytest.mark.parametrize(
    "new_kv, past",
    [
        ([6, 7], PAST),
        (["tokens", 7], [2, "batch", "slots", 8]),
        (["batch", "rows", 2, 3], ["layers", "batch", "slots", 8]),
        (["batch", 7, "heads", "size"], ["layers", "batch", 6, "hidden"]),
        ([4, "rows", "heads", "size"], ["layers", 3, "slots", 8]),
        (["a", "b", "c"], PAST),
        (["tokens", "hidden"], ["a", "b", "c"]),
    ],
)
def test_shapes_that_cannot_be_right_are_refused_when_the_session_is_made(new_kv, past):
    with pytest.raises(Exception, match="KVCacheOperation: "):
        custom(models.with_shapes(model(), {"new_kv": new_kv, "past": past}))


@pytest.mark.parametrize(
    "shapes",
    [
        {"layer_id": (2,)},
        {"past": PAST, "token_offset": (PAST[1] + 1,)},
        {"past": PAST, "seq_len": (PAST[1], 1)},
    ],
)
def test_lists_that_cannot_be_right_are_refused_when_the_session_is_made(shapes):
    with pytest.raises(Exception, match="KVCacheOperation: "):
        custom(models.with_shapes(model(), shapes))


@pytest.mark.parametrize(
    "new_kv", [(6, 8), ("tokens", "hidden"), (3, 2, 2, 4), ("b", "s", 2, "d"), ("b", "s", "n", 4)]
)
@pytest.mark.parametrize("past", [PAST, ("l", "b", "s", "h"), ("l", 3, "s", 8), ("l", "b", 6, "h")])
def test_unknown_dimensions_are_not_refused(new_kv, past):
    session = custom(models.with_shapes(model(), {"new_kv": new_kv, "past": past}))
    new = (6, 8) if len(new_kv) == 2 else (3, 2, 2, 4)
    check(session, inputs(HALF, [1], [6, 3, 2], [2, 2, 2], new=new))
