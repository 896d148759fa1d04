"""Checks that every error has the message of ONNX Runtime's own kernel, and that a failed call does not
change a shared byte."""

import re

import numpy as np
import onnx
import pytest

from support import models
from support.elements import FLOAT
from support.sessions import HAS_BUILTIN, VERSION, builtin, plugin, run
from support.tensors import Tensor, same

I64 = np.iinfo(np.int64)

# name: attributes, past_cache, update, write_indices, part of the message
REFUSED = {
    "linear, negative": ({}, (2, 4, 1), (2, 2, 1), [0, -1], "write_indices[1] = -1 is negative"),
    "linear, most negative": (
        {}, (2, 4, 1), (2, 2, 1), [0, I64.min],
        f"write_indices[1] = {I64.min} is negative",
    ),
    "ring, negative": (
        {"mode": "circular"}, (2, 4, 1), (2, 2, 1), [0, -1],
        "write_indices[1] = -1 is negative",
    ),
    "past the end": (
        {}, (2, 4, 1), (2, 2, 1), [0, 3],
        "write_indices[1] + sequence_length (3 + 2) exceeds max_sequence_length (4)",
    ),
    "past the end by far": (
        {}, (2, 4, 1), (2, 2, 1), [I64.max, 0],
        f"write_indices[0] + sequence_length ({I64.max} + 2) exceeds max_sequence_length (4)",
    ),
    "no rows, past the end": (
        {}, (2, 4, 1), (2, 0, 1), [0, 5],
        "write_indices[1] + sequence_length (5 + 0) exceeds max_sequence_length (4)",
    ),
    "indices of another batch": ({}, (2, 4, 1), (2, 2, 1), [0], "write_indices must have shape [batch_size]"),
    "indices of rank 2": ({}, (2, 4, 1), (2, 2, 1), [[0, 0]], "write_indices must have shape [batch_size]"),
    "a longer update": (
        {}, (2, 4, 1), (2, 5, 1), [0, 0],
        "update sequence_length (5) exceeds max_sequence_length (4)",
    ),
    "a longer update in a ring": (
        {"mode": "circular"}, (2, 4, 1), (2, 5, 1), [0, 0],
        "update sequence_length (5) exceeds max_sequence_length (4)",
    ),
    "another batch": (
        {}, (2, 4, 1), (3, 2, 1), [0, 0],
        "shape mismatch in dimension 0: past_cache=2 vs update=3",
    ),
    "other rows": (
        {}, (2, 4, 3), (2, 2, 2), [0, 0],
        "shape mismatch in dimension 2: past_cache=3 vs update=2",
    ),
    "other rank": (
        {}, (2, 4, 1), (2, 4), [0, 0],
        "past_cache and update must have the same number of dimensions",
    ),
    "rank 1": ({}, (4,), (4,), [0], "past_cache must have at least 2 dimensions"),
    "axis 0": (
        {"axis": 0}, (2, 4, 1), (2, 4, 1), [0, 0],
        "axis must be in [1, ndim-1] after normalization, got 0",
    ),
    "axis -rank": (
        {"axis": -3}, (2, 4, 1), (2, 4, 1), [0, 0],
        "axis must be in [1, ndim-1] after normalization, got 0",
    ),
    "axis beyond": (
        {"axis": 3}, (2, 4, 1), (2, 4, 1), [0, 0],
        "axis must be in [1, ndim-1] after normalization, got 3",
    ),
}  # fmt: skip


def words(failure: Exception) -> str:
    """Returns the message without the runtime's preamble."""
    found = re.search(r"TensorScatter(?: linear mode)?: .*", str(failure))
    return found.group() if found else str(failure)


def refusal(make, name) -> str:
    """Returns the error message of a call in place, and checks that no byte has changed."""
    attributes, past_shape, update_shape, indices, _ = REFUSED[name]
    past, update = Tensor.painted(FLOAT, past_shape, 1), Tensor.painted(FLOAT, update_shape, 2)
    before = past.bytes()
    inputs = {"past_cache": past, "update": update, "write_indices": Tensor.of(indices)}
    session = make(models.tensor_scatter(FLOAT.code, **attributes))
    with pytest.raises(Exception) as caught:
        run(session, inputs, {"present_cache": past})
    if make is plugin:
        same(past, before)
    return words(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why_and_writes_nothing(name):
    message = refusal(plugin, name)
    assert message.startswith("TensorScatter")
    assert REFUSED[name][-1] in message


@pytest.mark.needs_builtin
@pytest.mark.parametrize("name", REFUSED)
def test_the_built_in_kernel_says_the_same(name):
    theirs = refusal(builtin, name)
    if "Integer overflow" in theirs:
        # 1.25 multiplies before it compares.
        assert name == "past the end by far" and VERSION < (1, 31)
    else:
        assert refusal(plugin, name) == theirs


@pytest.mark.parametrize("mode", ["", "Linear", "ring", "circular "])
def test_an_unknown_mode_is_refused_when_the_session_is_made(mode):
    model = models.tensor_scatter(FLOAT.code, mode=mode)
    expected = re.escape(f"TensorScatter: mode must be 'linear' or 'circular', got '{mode}'")
    for make in [plugin, *[builtin][: int(HAS_BUILTIN)]]:
        with pytest.raises(Exception, match=expected):
            make(model)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_bad_index_in_the_last_sample_leaves_all_samples(mode):
    """The built-in kernel of 1.29 and before has written the first 63 samples when it returns the error."""
    past, update = Tensor.painted(FLOAT, (64, 8, 32, 16), 1), Tensor.painted(FLOAT, (64, 8, 4, 16), 2)
    before = past.bytes()
    inputs = {"past_cache": past, "update": update, "write_indices": Tensor.of([1] * 63 + [-1])}
    session = plugin(models.tensor_scatter(FLOAT.code, mode=mode))
    with pytest.raises(Exception, match=re.escape("write_indices[63] = -1 is negative")):
        run(session, inputs, {"present_cache": past})
    same(past, before)


def test_a_session_goes_on_after_an_error():
    session = plugin(models.tensor_scatter(FLOAT.code))
    past, update = Tensor.garbage(FLOAT, (1, 4, 1)), Tensor.painted(FLOAT, (1, 1, 1), 2)
    for index, fits in [(4, False), (3, True), (-1, False), (0, True)] * 25:
        before = past.bytes()
        inputs = {"past_cache": past, "update": update, "write_indices": Tensor.of([index])}
        if fits:
            run(session, inputs, {"present_cache": past})
            assert past.bytes()[4 * index : 4 * index + 4] == update.bytes()
        else:
            with pytest.raises(Exception, match="write_indices"):
                run(session, inputs, {"present_cache": past})
            same(past, before)


@pytest.mark.parametrize("kind", ["update in the cache", "update in the present", "present across the cache"])
def test_memory_that_overlaps_is_refused(kind):
    """The built-in kernel would read what it has just overwritten."""
    memory = Tensor.painted(FLOAT, (1, 12, 1), 1)
    before = memory.bytes()
    session = plugin(models.tensor_scatter(FLOAT.code))
    past, update, present = {
        "update in the cache": (0, 3, 0),
        "update in the present": (0, 7, 6),
        "present across the cache": (0, 10, 2),
    }[kind]
    binding = session.io_binding()
    for name, offset, rows in [("past_cache", past, 4), ("update", update, 2)]:
        binding.bind_input(name, "cpu", 0, np.float32, (1, rows, 1), memory.address + 4 * offset)
    binding.bind_cpu_input("write_indices", np.array([0]))
    binding.bind_output("present_cache", "cpu", 0, np.float32, (1, 4, 1), memory.address + 4 * present)
    with pytest.raises(Exception, match="TensorScatter: .*shares memory"):
        session.run_with_iobinding(binding)
    same(memory, before)


@pytest.mark.parametrize("domain", ["", models.DOMAIN])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "functional"])
def test_indices_in_the_memory_that_is_written_are_refused(domain, in_place):
    """Indices are read again after the first byte has been written."""
    past, update = Tensor.painted(FLOAT, (2, 4, 1), 1), Tensor.painted(FLOAT, (2, 1, 1), 2)
    present = past if in_place else Tensor.garbage(FLOAT, past.shape)
    indices = present.holding(np.array([0, 1]), offset=8)
    before = past.bytes(), present.bytes()
    session = plugin(models.tensor_scatter(FLOAT.code, domain=domain), operators=bool(domain))
    with pytest.raises(Exception, match="TensorScatter: .*shares memory with that of write_indices"):
        run(
            session,
            {"past_cache": past, "update": update, "write_indices": indices},
            {"present_cache": present},
        )
    same(past, before[0])
    same(present, before[1])


def test_indices_of_another_type_are_refused_when_the_session_is_made():
    model = onnx.load_from_string(models.tensor_scatter(FLOAT.code))
    model.graph.input[2].type.tensor_type.elem_type = onnx.TensorProto.INT32
    with pytest.raises(Exception, match="(?i)type.*int32"):
        plugin(model.SerializeToString())
