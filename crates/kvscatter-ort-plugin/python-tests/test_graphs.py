"""A TensorScatter inside larger graphs: in the body of a loop, on initializers, and several on one cache."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from support import documents, models
from support.sessions import PROVIDER, assignment, plugin

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
CACHE = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
UPDATE = -1 - np.arange(6, dtype=np.float32).reshape(2, 1, 3)


def graph(nodes, names, outputs, initializers=()):
    inputs = [models.value(name, code) for name, code in names.items()]
    made = helper.make_graph(nodes, "graph", inputs, [models.value(name, FLOAT) for name in outputs])
    made.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers)
    imports = [helper.make_opsetid("", 24)]
    return helper.make_model(made, opset_imports=imports, ir_version=11).SerializeToString()


def test_a_loop_carries_the_cache():
    """Iteration i writes slot i, so one run executes the whole decoder."""
    body = helper.make_graph(
        [
            helper.make_node("Expand", ["iteration", "batch"], ["at"]),
            helper.make_node("TensorScatter", ["cache", "update", "at"], ["present"]),
            helper.make_node("Identity", ["go_on"], ["still"]),
        ],
        "body",
        [
            models.value("iteration", INT64, []),
            models.value("go_on", TensorProto.BOOL, []),
            models.value("cache", FLOAT, [2, 4, 3]),
        ],
        [models.value("still", TensorProto.BOOL, []), models.value("present", FLOAT, [2, 4, 3])],
    )
    loop = helper.make_node("Loop", ["steps", "", "past"], ["last"], body=body)
    names = {"steps": INT64, "past": FLOAT, "update": FLOAT}
    session = plugin(graph([loop], names, ["last"], [("batch", np.array([2]))]))
    assert assignment(session)[PROVIDER] == ["TensorScatter"]
    past = CACHE.copy()
    (last,) = session.run(None, {"steps": np.array(3), "past": past, "update": UPDATE})
    assert (last[:, :3] == UPDATE).all() and (last[:, 3] == CACHE[:, 3]).all()
    assert (past == CACHE).all()


def test_an_initializer_is_never_written():
    scatter = helper.make_node("TensorScatter", ["past", "update", "at"], ["present"])
    session = plugin(graph([scatter], {"update": FLOAT, "at": INT64}, ["present"], [("past", CACHE)]))
    for at in ([0, 3], [2, 1], [0, 3]):
        (present,) = session.run(None, {"update": UPDATE, "at": np.array(at)})
        assert (present == documents.tensor_scatter(CACHE, UPDATE, at)).all()


def test_a_graph_of_constants():
    scatter = helper.make_node("TensorScatter", ["past", "update", "at"], ["present"])
    constants = [("past", CACHE), ("update", UPDATE), ("at", np.array([1, 2]))]
    (present,) = plugin(graph([scatter], {}, ["present"], constants)).run(None, {})
    assert (present == documents.tensor_scatter(CACHE, UPDATE, [1, 2])).all()


def test_two_writes_after_each_other_and_two_beside_each_other():
    nodes = [
        helper.make_node("TensorScatter", ["past", "update", "first"], ["one"]),
        helper.make_node("TensorScatter", ["one", "update", "second"], ["both"]),
        helper.make_node("TensorScatter", ["past", "update", "second"], ["other"]),
    ]
    names = {"past": FLOAT, "update": FLOAT, "first": INT64, "second": INT64}
    session = plugin(graph(nodes, names, ["both", "other", "one"]))
    assert assignment(session) == {PROVIDER: ["TensorScatter"] * 3}
    feed = {"past": CACHE.copy(), "update": UPDATE, "first": np.array([0, 1]), "second": np.array([3, 2])}
    both, other, one = session.run(None, feed)
    expected_one = documents.tensor_scatter(CACHE, UPDATE, [0, 1])
    assert (one == expected_one).all()
    assert (both == documents.tensor_scatter(expected_one, UPDATE, [3, 2])).all()
    assert (other == documents.tensor_scatter(CACHE, UPDATE, [3, 2])).all()
    assert (feed["past"] == CACHE).all()
