"""Tests ``kvscatter lower`` on every small case, both the values and the errors at run time."""

import itertools
import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from support.command import kvscatter

TARGETS = ["scatter-elements", "scatter-nd"]
MODES = ["linear", "circular"]
# (rank, axis) with every axis, counted from the front and from the back.
PLACES = [(rank, axis) for rank in (2, 3, 4) for axis in (*range(1, rank), *range(1 - rank, 0))]

Array = np.ndarray


def model(
    rank: int,
    axis: int,
    mode: str,
    *,
    indexed: bool = True,
    element: int = TensorProto.FLOAT,
    dims: str = "symbolic",
) -> onnx.ModelProto:
    """Makes one TensorScatter. ``dims``: all symbols, no symbols, or a computed, undeclared update."""
    node_inputs = ["past", "update"] + (["starts"] if indexed else [])
    nodes = [helper.make_node("TensorScatter", node_inputs, ["present"], axis=axis, mode=mode)]
    cache: list[str | None] = ["batch", *(f"d{index}" for index in range(1, rank))]
    update = list(cache)
    update[axis] = "length"
    if dims != "symbolic":
        cache, update = [None] * rank, [None] * rank
    inputs = [helper.make_tensor_value_info("past", element, cache)]
    if dims == "undeclared":
        nodes.insert(0, helper.make_node("Identity", ["given"], ["update"]))
        inputs.append(helper.make_tensor_value_info("given", element, update))
    else:
        inputs.append(helper.make_tensor_value_info("update", element, update))
    if indexed:
        inputs.append(helper.make_tensor_value_info("starts", TensorProto.INT64, ["batch"]))
    outputs = [helper.make_tensor_value_info("present", element, cache)]
    graph = helper.make_graph(nodes, "one", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def lowered(before: onnx.ModelProto, folder: pathlib.Path, target: str) -> onnx.ModelProto:
    """Lowers the model with the command."""
    onnx.save(before, folder / "before.onnx")
    kvscatter("lower", folder / "before.onnx", "--to", target, "-o", folder / "after.onnx")
    after = onnx.load(folder / "after.onnx")
    onnx.checker.check_model(after, full_check=True)
    assert all(node.op_type != "TensorScatter" for node in after.graph.node)
    return after


def session(of: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Makes a session of ONNX Runtime that prints no warnings."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(of.SerializeToString(), options)


def oracle(past: Array, update: Array, starts: Array, axis: int, mode: str) -> Array | None:
    """Computes ONNX's definition row by row, or returns ``None`` for an error."""
    capacity, length = past.shape[axis], update.shape[axis]
    present = past.copy()
    rows, values = np.moveaxis(present, axis, 1), np.moveaxis(update, axis, 1)
    if length > capacity:
        return None
    for sample, start in enumerate(starts.tolist()):
        for row in range(length):
            slot = start + row
            if mode == "circular":
                slot %= capacity
            elif not 0 <= slot < capacity:
                return None
            rows[sample, slot] = values[sample, row]
    return present


def tensors(cache: list[int], length: int, axis: int) -> tuple[Array, Array]:
    """Makes a cache of negative numbers and an update of positive ones, all different."""
    update = list(cache)
    update[axis] = length
    count = int(np.prod(cache))
    past = -1 - np.arange(count, dtype=np.float32).reshape(cache)
    return past, 1 + np.arange(int(np.prod(update)), dtype=np.float32).reshape(update)


def run(of: onnxruntime.InferenceSession, past: Array, update: Array, starts: Array | None) -> Array | None:
    """Returns the present cache, or ``None`` for an error."""
    names = [value.name for value in of.get_inputs()]
    feeds = dict(zip(names, (past, update, starts), strict=False))
    try:
        return of.run(None, feeds)[0]
    except Exception:
        return None


def small_cases(rank: int, axis: int):
    """Yields batches of 0 to 2, capacities and lengths of 0 to 3 and one more, and all starts around them."""
    for batch, capacity, other in itertools.product((0, 1, 2), (0, 1, 3), (0, 2)):
        if rank == 2 and other == 0:
            continue
        cache = [batch, *[other] * (rank - 1)]
        cache[axis] = capacity
        for length in range(capacity + 2):
            past, update = tensors(cache, length, axis)
            around = (-capacity - 1, -1, 0, 1, capacity - length, capacity, capacity + 2)
            for starts in itertools.product(sorted(set(around)), repeat=batch):
                yield past, update, np.array(starts, np.int64)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rank", "axis"), PLACES)
def test_every_small_write(tmp_path, rank, axis, mode, target):
    """Errors must stay errors, except where nothing is written at all."""
    dims = {2: "symbolic", 3: "unnamed", 4: "undeclared"}[rank]
    before = model(rank, axis, mode, dims=dims)
    after = session(lowered(before, tmp_path, target))
    seen = {"written": 0, "refused": 0}
    for past, update, starts in small_cases(rank, axis):
        want = oracle(past, update, starts, axis, mode)
        got = run(after, past, update, starts)
        case = f"{past.shape} {update.shape} {starts}"
        if want is None and got is not None:
            assert update.size == 0 or past.size == 0, case
        elif want is not None:
            assert got is not None, case
            assert got.tobytes() == want.tobytes() and got.shape == want.shape, case
        seen["refused" if want is None else "written"] += 1
    assert min(seen.values()) > 20, seen


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_as_the_operator_itself(tmp_path, mode, target):
    """Compares with the TensorScatter of ONNX Runtime and onnx, where these are right: no negative starts."""
    before = model(3, 1, mode)
    original, reference = session(before), ReferenceEvaluator(before)
    after = session(lowered(before, tmp_path, target))
    for past, update, starts in small_cases(3, 1):
        if starts.min(initial=0) < 0 or not update.size:
            continue
        want, got = run(original, past, update, starts), run(after, past, update, starts)
        case = f"{past.shape} {update.shape} {starts}"
        assert (want is None) == (got is None), case
        if want is not None:
            assert got.tobytes() == want.tobytes(), case
            (answer,) = reference.run(None, {"past": past, "update": update, "starts": starts})
            assert answer.tobytes() == want.tobytes(), case


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_numbers_at_the_ends_of_int64(tmp_path, mode, target):
    """No sum may wrap around into the cache."""
    after = session(lowered(model(3, 1, mode), tmp_path, target))
    past, update = tensors([1, 5, 2], 3, 1)
    ends = np.iinfo(np.int64)
    for start in (ends.min, ends.min + 1, ends.max - 2, ends.max - 1, ends.max):
        starts = np.array([start], np.int64)
        want, got = oracle(past, update, starts, 1, mode), run(after, past, update, starts)
        assert (want is None) == (got is None) == (mode == "linear"), start
        if want is not None:
            assert got.tobytes() == want.tobytes(), start


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_without_write_indices_it_is_the_beginning(tmp_path, mode, target):
    """All samples are written from their first slot."""
    after = session(lowered(model(4, -2, mode, indexed=False), tmp_path, target))
    for batch, length in itertools.product((0, 1, 3), (0, 1, 5, 6)):
        past, update = tensors([batch, 2, 5, 3], length, 2)
        want = oracle(past, update, np.zeros(batch, np.int64), 2, mode)
        got = run(after, past, update, None)
        if want is not None:
            assert got is not None and got.tobytes() == want.tobytes(), (batch, length)
        else:
            assert got is None or update.size == 0, (batch, length)


@pytest.mark.parametrize("target", TARGETS)
def test_shapes_that_do_not_fit_are_refused_at_run_time(tmp_path, target):
    """A short update or a short list of starts must not be broadcast silently."""
    after = session(lowered(model(4, 2, "linear", dims="unnamed"), tmp_path, target))
    past, update = tensors([2, 2, 5, 3], 2, 2)
    starts = np.array([1, 2], np.int64)
    assert run(after, past, update, starts) is not None
    for short in (update[:1], update[:, :1], update[..., :1], np.repeat(update, 2, axis=0)):
        assert run(after, past, np.ascontiguousarray(short), starts) is None, short.shape
    for other in (starts[:1], starts[:0], np.array([1, 2, 0], np.int64)):
        assert run(after, past, update, other) is None, other


@pytest.mark.parametrize("target", TARGETS)
def test_every_type_that_the_operators_have(tmp_path, target):
    """The operators do not support 8-bit floats and 4-bit types."""
    codes = {name: code for name, code in TensorProto.DataType.items() if name not in ("UNDEFINED",)}
    without = {name for name in codes if name.startswith(("FLOAT8", "FLOAT4", "INT4", "UINT4"))}
    beyond = {name for name in codes if name.startswith(("INT2", "UINT2", "FLOAT6"))}
    for name in sorted(set(codes) - beyond):
        before = model(3, 1, "circular", element=codes[name])
        if name in without:
            onnx.save(before, tmp_path / "before.onnx")
            refused = tmp_path / "refused.onnx"
            done = kvscatter("lower", tmp_path / "before.onnx", "--to", target, "-o", refused, exit_code=2)
            assert "cannot be lowered" in done.stderr and not refused.exists(), name
            continue
        after = lowered(before, tmp_path, target)
        past, update = tensors([2, 4, 3], 3, 1)
        dtype = helper.tensor_dtype_to_np_dtype(codes[name])
        if name == "STRING":
            past, update = past.astype(str), update.astype(str)
        past, update = past.astype(dtype), update.astype(dtype)
        starts = np.array([3, -1], np.int64)
        want = oracle(past, update, starts, 1, "circular")
        feeds = {"past": past, "update": update, "starts": starts}
        try:
            (got,) = session(after).run(None, feeds)
        except Exception:
            # ONNX Runtime does not support complex numbers, and its Python interface does not support bfloat16.
            assert name in ("BFLOAT16", "COMPLEX64", "COMPLEX128")
            (got,) = ReferenceEvaluator(after).run(None, feeds)
        assert (got == want).all(), name
