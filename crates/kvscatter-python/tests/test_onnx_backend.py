"""Runs ONNX's own backend tests, every element type through a model, and models that must raise an error."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import kvscatter
from kvscatter import onnx_backend, reference, testing
from kvscatter.onnx_backend import Backend, ModelError
from support import refused

onnx = pytest.importorskip("onnx")
helper = onnx.helper


class Counting(Backend):
    """Counts the calls that ONNX's tests make, and the results."""

    runs: ClassVar[list[str]] = []
    opted_out: ClassVar[list[str]] = []

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
        from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

        try:
            prepared = super().prepare(model, device, **kwargs)
        except BackendIsNotSupposedToImplementIt:
            cls.opted_out.append(model.graph.name)
            raise
        return CountingRep(prepared, model.graph.name, cls)


class CountingRep:
    def __init__(self, prepared: Any, name: str, counts: type[Counting]) -> None:
        self.prepared, self.name, self.counts = prepared, name, counts

    def run(self, inputs: Any) -> Any:
        from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

        before = [array.copy() for array in inputs]
        try:
            outputs = self.prepared.run(inputs)
        except BackendIsNotSupposedToImplementIt:
            self.counts.opted_out.append(self.name)
            raise
        assert all(np.array_equal(array, was) for array, was in zip(inputs, before, strict=True))
        assert not any(np.shares_memory(output, array) for output in outputs for array in inputs)
        self.counts.runs.append(self.name)
        return outputs


def test_onnx_tests_this_backend_and_none_passes_by_opting_out() -> None:
    with warnings.catch_warnings():
        # The import also builds the cases of other operators, some of which divide by zero.
        warnings.simplefilter("ignore")
        from onnx.backend.test import BackendTest

        suite = BackendTest(Counting, __name__).include("^test_tensorscatter").test_suite
    every = set(ids(suite))
    result = unittest.TestResult()
    suite.run(result)
    assert (result.errors, result.failures, result.unexpectedSuccesses) == ([], [], [])
    skipped = {test.id().rpartition(".")[2]: why for test, why in result.skipped}
    ran = every - set(skipped)
    names = {"test_tensorscatter", "test_tensorscatter_3d", "test_tensorscatter_circular"}
    assert ran == {f"{name}_cpu" for name in names}
    assert sorted(Counting.runs) == sorted(names) and Counting.opted_out == []
    for name in names:
        assert skipped[f"{name}_cuda"] == "Backend doesn't support device CUDA"


def ids(suite: unittest.TestSuite) -> Iterator[str]:
    """Yields the names of the tests, which are gone after the suite has run."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from ids(test)
        else:
            yield test.id().rpartition(".")[2]


def scatter_model(
    element: int, *, capacity: Any = "s", initializers: Any = (), mode: str = "linear", shape: Any = None
) -> Any:
    """Makes ``present = TensorScatter(past, new, at)`` along axis 1 of three dimensions."""
    shape = shape or ["b", capacity, "d"]
    return helper.make_model(
        helper.make_graph(
            [
                helper.make_node(
                    "TensorScatter", ["past", "new", "at"], ["present"], name="write", axis=1, mode=mode
                )
            ],
            "scatter",
            [
                helper.make_tensor_value_info("past", element, shape),
                helper.make_tensor_value_info("new", element, [shape[0], "rows", *shape[2:]]),
                helper.make_tensor_value_info("at", onnx.TensorProto.INT64, [shape[0]]),
            ],
            [helper.make_tensor_value_info("present", element, shape)],
            list(initializers),
        ),
        opset_imports=[helper.make_opsetid("", 24)],
    )


def test_the_oracle_checks_the_backend() -> None:
    def kernel(past: Any, update: Any, at: Any, *, axis: int, mode: str) -> Any:
        names = ["past", "new"] if at is None else ["past", "new", "at"]
        node = helper.make_node("TensorScatter", names, ["present"], axis=axis, mode=mode)
        (present,) = onnx_backend.run_node(node, [past, update, at][: len(names)])
        return present

    testing.check(kernel).assert_passed()


PAST = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
NEW = -np.ones((2, 1, 2), np.float32)
AT = np.array([2, 0])


def test_inputs_by_name_or_in_order_outputs_by_place_or_name() -> None:
    model = scatter_model(onnx.TensorProto.FLOAT)
    expected = reference.tensor_scatter(PAST, NEW, AT)
    rep = onnx_backend.prepare(model)
    for inputs in ([PAST, NEW, AT], {"at": AT, "past": PAST, "new": NEW}, (PAST, NEW, AT)):
        outputs = rep.run(inputs)
        assert len(outputs) == 1 and np.array_equal(outputs[0], expected)
        assert np.array_equal(outputs["present"], expected)  # type: ignore[call-overload]
    assert np.array_equal(onnx_backend.run_model(model, [PAST, NEW, AT])[0], expected)
    assert outputs[0].flags.writeable and outputs[0].flags.c_contiguous


def test_strided_read_only_and_swapped_inputs() -> None:
    wide = np.zeros((3, 4, 2), np.dtype(">f4"))
    wide[::-1, :, ::-1][:2, :3] = PAST
    past = wide[::-1, :, ::-1][:2, :3]
    past.flags.writeable = False
    (present,) = onnx_backend.run_model(scatter_model(onnx.TensorProto.FLOAT), [past, NEW, AT])
    assert present.dtype == np.float32
    assert np.array_equal(present, reference.tensor_scatter(PAST, NEW, AT))


def test_initializers_are_defaults() -> None:
    stored = onnx.numpy_helper.from_array(AT, "at")
    rep = onnx_backend.prepare(scatter_model(onnx.TensorProto.FLOAT, initializers=[stored]))
    (present,) = rep.run([PAST, NEW])
    assert np.array_equal(present, reference.tensor_scatter(PAST, NEW, AT))
    (present,) = rep.run([PAST, NEW, np.zeros(2, np.int64)])
    assert np.array_equal(present, reference.tensor_scatter(PAST, NEW))
    (again,) = rep.run([PAST, NEW])
    assert np.array_equal(again, reference.tensor_scatter(PAST, NEW, AT))


def test_a_decoder_step_of_two_writes_and_a_sum() -> None:
    value = onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("TensorScatter", ["past", "new", "at"], ["once"], axis=1),
        helper.make_node("Add", ["at", "one"], ["next"]),
        helper.make_node("TensorScatter", ["once", "new", "next"], ["twice"], axis=1, mode="circular"),
        helper.make_node("Identity", ["twice"], ["present"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [
            helper.make_tensor_value_info("past", value, [2, 3, 2]),
            helper.make_tensor_value_info("new", value, [2, 1, 2]),
            helper.make_tensor_value_info("at", onnx.TensorProto.INT64, [2]),
        ],
        [
            helper.make_tensor_value_info("once", value, [2, 3, 2]),
            helper.make_tensor_value_info("present", value, [2, 3, 2]),
            helper.make_tensor_value_info("past", value, [2, 3, 2]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    once, twice, past = onnx_backend.run_model(model, [PAST, NEW, AT])
    assert np.array_equal(once, reference.tensor_scatter(PAST, NEW, AT))
    assert np.array_equal(twice, reference.tensor_scatter(once, NEW, AT + 1, mode="circular"))
    assert np.array_equal(past, PAST) and not np.shares_memory(past, PAST)


def test_strings_that_are_not_utf8() -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    (text,) = onnx_backend.run_node(node, [np.array([["κ", b"\xff", ""]], object)])
    assert text.tolist() == [["κ", "\udcff", ""]] and text.dtype == object
    (again,) = onnx_backend.run_node(node, [text])
    assert again.tolist() == text.tolist()
    (text,) = onnx_backend.run_node(node, [np.array(["ab", "c"])])
    assert text.tolist() == ["ab", "c"]
    refused(
        "element_type",
        "a",
        onnx_backend.run_node,
        helper.make_node("Identity", ["a"], ["b"]),
        [np.array([1, "x"], object)],
        of=kvscatter.ElementTypeError,
    )


def test_external_data_lies_beside_the_file(tmp_path: pathlib.Path) -> None:
    model = scatter_model(onnx.TensorProto.FLOAT, initializers=[onnx.numpy_helper.from_array(AT, "at")])
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="data",
        size_threshold=0,
    )
    assert (tmp_path / "data").exists()
    (present,) = onnx_backend.prepare(path).run([PAST, NEW])
    assert np.array_equal(present, reference.tensor_scatter(PAST, NEW, AT))
    error = refused("external_without_folder", None, onnx_backend.prepare, path.read_bytes(), of=ModelError)
    assert error.fields == {"tensor": "at"}
    refused("io", None, onnx_backend.prepare, tmp_path / "none.onnx", of=ModelError)


@pytest.mark.parametrize(
    ("inputs", "kind", "fields"),
    [
        ([PAST, NEW], "input_count", {"got": 2, "expected": 3}),
        ({"past": PAST, "new": NEW}, "input_missing", {"value_name": "at"}),
        ({"past": PAST, "new": NEW, "at": AT, "x": AT}, "input_unknown", {"value_name": "x"}),
        ([PAST.astype(np.float64), NEW, AT], "value_type", {"value_name": "past"}),
        ([PAST, NEW, AT.astype(np.int32)], "value_type", {"value_name": "at"}),
        ([PAST[0], NEW, AT], "value_rank", {"value_name": "past"}),
        ([PAST, NEW[:1], AT], "symbol_conflict", {"value_name": "new"}),
        ([PAST, NEW, AT[:1]], "symbol_conflict", {"value_name": "at"}),
    ],
)
def test_inputs_that_are_not_what_the_model_declares(inputs: Any, kind: str, fields: dict[str, Any]) -> None:
    rep = onnx_backend.prepare(scatter_model(onnx.TensorProto.FLOAT))
    assert refused(kind, None, rep.run, inputs, of=ModelError).fields == fields


def test_inputs_of_no_type_and_no_list() -> None:
    rep = onnx_backend.prepare(scatter_model(onnx.TensorProto.FLOAT))
    with pytest.raises(kvscatter.ElementTypeError):
        rep.run([PAST.astype("M8[s]"), NEW, AT])
    for place, name in enumerate(("past", "new", "at")):
        inputs = [PAST, NEW, AT]
        inputs[place] = np.ma.array(inputs[place])
        refused("tensor", name, rep.run, inputs, of=kvscatter.ArrayError)
    with pytest.raises(TypeError, match="list or a dict"):
        rep.run(PAST)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no argument 'option'"):
        rep.run([PAST, NEW, AT], option=1)


def test_an_index_that_does_not_fit_is_the_operators_error_and_names_the_node() -> None:
    rep = onnx_backend.prepare(scatter_model(onnx.TensorProto.FLOAT))
    with pytest.raises(kvscatter.PositionError) as caught:
        rep.run([PAST, NEW, np.array([0, 3])])
    error = caught.value
    assert (error.kind, error.index, error.value, error.capacity) == ("start_out_of_range", 1, 3, 3)
    assert isinstance(error.__cause__, ModelError)
    assert error.__cause__.fields == {"node": 0, "node_name": "write", "op_type": "TensorScatter"}
    with pytest.raises(kvscatter.ShapeError):
        rep.run([PAST, np.zeros((2, 4, 2), np.float32), AT])


def relu() -> Any:
    info = helper.make_tensor_value_info("x", 1, [1])
    out = helper.make_tensor_value_info("y", 1, [1])
    return helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info], [out]))


def old() -> Any:
    model = scatter_model(1)
    model.opset_import[0].version = 23
    return model


def claims() -> Any:
    """Makes an initializer of a few bytes that claims to have many."""
    model = scatter_model(1, initializers=[onnx.numpy_helper.from_array(AT, "at")])
    model.graph.initializer[0].dims[0] = 2**60
    return model


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: b"\xff\xff\xff", "decode"),
        (lambda: onnx.ModelProto(), "graph_missing"),
        (relu, "unsupported_operator"),
        (old, "opset_too_old"),
        (claims, "tensor"),
        (lambda: scatter_model(1, mode="ring"), "mode"),
        (lambda: scatter_model(onnx.TensorProto.INT2), "unsupported_type"),
    ],
)
def test_models_that_cannot_be_evaluated(make: Callable[[], Any], kind: str) -> None:
    model = make()
    refused(kind, None, onnx_backend.prepare, model, of=ModelError)
    assert not onnx_backend.is_compatible(model)


def test_bytes_from_strangers_end_in_an_error() -> None:
    data = scatter_model(1, initializers=[onnx.numpy_helper.from_array(AT, "at")]).SerializeToString()
    random = np.random.default_rng(7)
    refusals = 0
    for _ in range(3000):
        spoilt = bytearray(data)
        for place in random.integers(0, len(data), random.integers(1, 4)):
            spoilt[place] = random.integers(0, 256)
        try:
            onnx_backend.prepare(bytes(spoilt)).run([PAST, NEW, AT])
        except kvscatter.Error:
            refusals += 1
    assert 0 < refusals < 3000


def test_devices() -> None:
    model = scatter_model(onnx.TensorProto.FLOAT)
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA") and not onnx_backend.supports_device("CUDA:1")
    assert onnx_backend.is_compatible(model) and not onnx_backend.is_compatible(model, "CUDA")
    error = refused("device", "device", onnx_backend.prepare, model, "CUDA:1", of=kvscatter.DeviceError)
    assert error.fields == {"device": "CUDA:1"}
    assert "kvscatter.cuda" in str(error)


def test_nodes() -> None:
    add = helper.make_node("Add", ["a", "a"], ["b"])
    assert onnx_backend.run_node(add, [AT, AT])[0].tolist() == [4, 0]
    constant = helper.make_node("Constant", [], ["c"], value_ints=[1, 2])
    assert onnx_backend.run_node(constant, [])[0].tolist() == [1, 2]
    info = [(np.dtype(np.int64), (2,))]
    assert onnx_backend.run_node(constant, [], outputs_info=info)[0].tolist() == [1, 2]
    write = helper.make_node("TensorScatter", ["past", "new", ""], ["present"], axis=1)
    assert np.array_equal(onnx_backend.run_node(write, {"past": PAST, "new": NEW})[0][:, :1], NEW)
    error = refused("input_count", None, onnx_backend.run_node, write, [PAST], of=ModelError)
    assert error.fields == {"got": 1, "expected": 2}
    refused("opset_too_old", None, onnx_backend.run_node, write, [PAST, NEW], opset_version=23, of=ModelError)


def test_without_onnx_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['onnx'] = None; import kvscatter.onnx_backend"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: kvscatter.onnx_backend needs onnx: pip install kvscatter[onnx]"
