"""com.kvscatter::KVCacheUpdate, which is TensorRT's, padded and packed."""

import itertools
import re

import numpy as np
import pytest
from onnx import TensorProto

from support import documents, models, sessions
from support.elements import BY_NAME, FLOAT, pack
from support.sessions import custom, run
from support.tensors import Tensor, same

TYPES = [BY_NAME[name] for name in ("float", "float16", "bfloat16")]
CACHE, PADDED, PACKED = (3, 2, 6, 4), (3, 2, 2, 4), (5, 2, 4)
I32, I64 = np.int32, np.int64


def model(element=FLOAT, indices=I32, packed=False, lengths=None, **attributes) -> bytes:
    if packed:
        attributes["update_form"] = "packed_nhd"
    kinds = {
        "cache": element.code,
        "update": element.code,
        "write_indices": TensorProto.INT32 if indices is I32 else TensorProto.INT64,
        "update_lengths": TensorProto.INT32 if (packed if lengths is None else lengths) else None,
    }
    return models.custom("KVCacheUpdate", kinds, "present", element.code, **attributes)


def inputs(element, indices, lengths=None, cache=CACHE, update=None) -> dict[str, Tensor]:
    update = update or (PADDED if lengths is None else PACKED)
    made = {
        "cache": Tensor.painted(element, cache, 1),
        "update": Tensor.painted(element, update, 2),
        "write_indices": Tensor.of(indices),
    }
    return made if lengths is None else made | {"update_lengths": Tensor.of(np.array(lengths, I32))}


def check(session, feed, indices, lengths=None):
    cache = feed["cache"]
    want = documents.kv_cache_update(cache.array(), feed["update"].array(), indices, lengths)
    sessions.check(session, feed, "cache", "present", pack(want, cache.element))


def refused(feed, make=lambda: custom(model())) -> str:
    return sessions.refused(make, feed, "cache", "present")


@pytest.mark.parametrize("element", TYPES, ids=str)
@pytest.mark.parametrize("kind", [I32, I64])
def test_padded(element, kind):
    indices = np.array([4, 0, 3], kind)
    check(custom(model(element, kind)), inputs(element, indices), indices)


@pytest.mark.parametrize("element", TYPES, ids=str)
@pytest.mark.parametrize("kind", [I32, I64])
@pytest.mark.parametrize("lengths", [[0, 2, 2, 5], [0, 0, 0, 5], [0, 5, 5, 5]])
def test_packed(element, kind, lengths):
    indices = np.array([1, 6, 1], kind)
    check(custom(model(element, kind, packed=True)), inputs(element, indices, lengths), indices, lengths)


def test_an_update_of_fewer_samples_leaves_the_later_ones():
    indices = np.array([5, 0], I32)
    check(custom(model()), inputs(FLOAT, indices, update=(2, 2, 1, 4)), indices)


def test_defaults_may_be_said():
    indices = np.array([4, 0, 3], I32)
    session = custom(model(cache_mode="linear", update_form="padded"))
    check(session, inputs(FLOAT, indices), indices)


@pytest.mark.parametrize(
    "indices, lengths, words",
    [
        ([0, 5, 0], None, "write_indices[1] = 5: 5 + 2 rows exceed the cache's capacity of 6"),
        ([0, 0, -1], None, "write_indices[2] = -1"),
        ([0, 0], None, "write_indices"),
        ([0, 0, 0], [1, 2, 3, 5], "update_lengths"),
        ([0, 0, 0], [0, 3, 2, 5], "update_lengths"),
        ([0, 0, 0], [0, 1, 2, 4], "update_lengths"),
        ([0, 0, 0], [0, 5], "must have 1"),
        ([0, 0, 2], [0, 0, 0, 5], "write_indices[2] = 2: 2 + 5 rows exceed the cache's capacity of 6"),
    ],
)
def test_refusals_leave_every_byte(indices, lengths, words):
    feed = inputs(FLOAT, np.array(indices, I32), lengths)
    message = refused(feed, lambda: custom(model(packed=lengths is not None)))
    assert "KVCacheUpdate: " in message and words in message


@pytest.mark.parametrize("name", ["write_indices", "update_lengths"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "functional"])
def test_positions_in_the_memory_that_is_written_are_refused(name, in_place):
    """Positions are read again after the first byte has been written."""
    feed = inputs(FLOAT, np.array([1, 6, 1], I32), [0, 2, 2, 5])
    cache = feed["cache"]
    present = cache if in_place else Tensor.garbage(FLOAT, CACHE)
    feed[name] = present.holding(feed[name].array().view(I32), offset=64)
    before = cache.bytes(), present.bytes()
    with pytest.raises(Exception, match=f"KVCacheUpdate: .*shares memory with that of {name}"):
        run(custom(model(packed=True)), feed, {"present": present})
    same(cache, before[0])
    same(present, before[1])


def test_a_type_that_tensorrt_does_not_take():
    message = refused(inputs(BY_NAME["int8"], np.zeros(3, I32)), lambda: custom(model(BY_NAME["int8"])))
    assert re.search("Type Error.*int8.*KVCacheUpdate", message)


def test_cache_and_update_of_different_types():
    made = {"cache": FLOAT.code, "update": BY_NAME["float16"].code, "write_indices": TensorProto.INT32}
    feed = inputs(FLOAT, np.zeros(3, I32))
    feed["update"] = Tensor.painted(BY_NAME["float16"], PADDED, 2)
    mixed = models.custom("KVCacheUpdate", made, "present", FLOAT.code)
    assert "KVCacheUpdate" in refused(feed, lambda: custom(mixed))


@pytest.mark.parametrize(
    "cache, update", [((3, 2, 6), (3, 2, 2)), ((3, 2, 6, 4), (3, 2, 7, 4)), (CACHE, (4, 2, 1, 4))]
)
def test_shapes_that_do_not_fit(cache, update):
    feed = inputs(FLOAT, np.zeros(update[0], I32), cache=cache, update=update)
    assert "KVCacheUpdate: " in refused(feed)


@pytest.mark.parametrize(
    "attributes, words",
    [
        ({"cache_mode": "circular"}, "cache_mode"),
        ({"update_form": "packed"}, "update_form"),
        ({"packed": True, "lengths": False}, "update_lengths"),
        ({"packed": False, "lengths": True}, "update_lengths"),
    ],
)
def test_forms_that_tensorrt_does_not_have(attributes, words):
    feed = inputs(FLOAT, np.zeros(3, I32))
    if attributes.get("lengths"):
        feed["update_lengths"] = Tensor.of(np.zeros(4, I32))
    with pytest.raises(Exception, match=f"KVCacheUpdate.*{words}"):
        run(custom(model(**attributes)), feed, {"present": feed["cache"]})


def test_shapes_are_inferred():
    cache = ["batch", 8, "slots", 64]
    shapes = {"cache": cache, "update": ["batch", 8, 1, 64]}
    assert custom(models.with_shapes(model(), shapes)).get_outputs()[0].shape == cache
    shapes["update"] = ["tokens", 8, 64]
    assert custom(models.with_shapes(model(packed=True), shapes)).get_outputs()[0].shape == cache


@pytest.mark.parametrize("cache", [CACHE, ("batch", 2, 6, 4), (3, 2, 6, "width"), ("batch", 2, 6, "width")])
@pytest.mark.parametrize("update", [(3, 2, 7, 4), (3, 1, 2, 4), (3, 2, 2), ("batch", 1, "rows", 4)])
def test_shapes_that_cannot_be_right_are_refused_when_the_session_is_made(cache, update):
    with pytest.raises(Exception, match="KVCacheUpdate: "):
        custom(models.with_shapes(model(), {"cache": cache, "update": update}))


def test_packed_shapes_that_cannot_be_right_are_refused_when_the_session_is_made():
    for update in [("tokens", 3, 4), ("tokens", "heads", 5), (5, 2), ("batch", 2, "rows", 4)]:
        with pytest.raises(Exception, match="KVCacheUpdate: "):
            custom(
                models.with_shapes(model(packed=True), {"cache": ("batch", 2, "slots", 4), "update": update})
            )


@pytest.mark.parametrize(
    "packed, shapes",
    [
        (False, {"update": (3, 2, 2, 4), "write_indices": (2,)}),
        (False, {"write_indices": (3, 1)}),
        (True, {"cache": CACHE, "write_indices": (CACHE[0] + 1,)}),
        (True, {"write_indices": (3,), "update_lengths": (3,)}),
        (True, {"update_lengths": (4, 1)}),
    ],
)
def test_lists_that_cannot_be_right_are_refused_when_the_session_is_made(packed, shapes):
    with pytest.raises(Exception, match="KVCacheUpdate: "):
        custom(models.with_shapes(model(packed=packed), shapes))


def test_a_rank_alone_can_be_wrong():
    for shapes in [{"cache": ["a", "b", "c"]}, {"update": ["a", "b", "c"]}]:
        with pytest.raises(Exception, match="KVCacheUpdate: "):
            custom(models.with_shapes(model(), shapes))


@pytest.mark.parametrize("packed", [False, True])
def test_unknown_dimensions_are_not_refused(packed):
    """Any dimension of shapes that fit may be unknown."""
    indices, lengths = np.array([4, 0, 3], I32), [0, 2, 2, 5] if packed else None
    if packed:
        indices = np.array([1, 6, 1], I32)
    names = list("abcd")
    for known in itertools.product([True, False], repeat=4):
        cache = [size if keep else name for size, name, keep in zip(CACHE, names, known, strict=True)]
        for update in [PACKED, ["t", "d", "h"]] if packed else [PADDED, ["b", "d", "s", "h"]]:
            session = custom(models.with_shapes(model(packed=packed), {"cache": cache, "update": update}))
            check(session, inputs(FLOAT, indices, lengths), indices, lengths)
