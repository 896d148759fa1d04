"""A layer that is computed as one node checks everything before it writes to a cache."""

import itertools

import numpy as np
import onnxruntime as ort
import pytest

from support.layers import ANGLES, BATCH, HEADS, LAYERS, SIZE, SLOTS, check_refusal, feed, layer, run
from support.sessions import plugin


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"positions": [[3], [ANGLES]]},
            "RotaryEmbedding: position_ids has position 12, must be from 0 to below 12",
        ),
        ({"positions": [[3], [-1]]}, "RotaryEmbedding: position_ids has position -1, must be"),
        (
            {"starts_k": [5, SLOTS]},
            r"TensorScatter linear mode: write_indices\[1\] \+ sequence_length \(16 \+ 1\)",
        ),
        (
            {"starts_v": [5, SLOTS]},
            r"TensorScatter linear mode: write_indices\[1\] \+ sequence_length \(16 \+ 1\)",
        ),
        ({"starts_v": [5, -1]}, r"TensorScatter: write_indices\[1\] = -1 is negative"),
        ({"lengths": [6, SLOTS + 1]}, r"Attention: nonpad_kv_seqlen\[1\] = 17: must be between 0 and 16"),
    ],
)
def test_an_error_changes_no_cache(change, message):
    session = plugin(layer(packed=True, rotation={}), fusion="on")
    inputs = feed(session, 1) | {name: np.array(values, np.int64) for name, values in change.items()}
    check_refusal(session, inputs, message)


@pytest.mark.parametrize(
    ("chosen", "change", "message"),
    [
        (
            {"packed": True, "reads_sizes": True},
            {"sizes": np.array([4, 2, 2, 0])},
            r"Split: \[4, 2, 2, 0\] must be three sizes that add up to 8",
        ),
        (
            {"rotation": {}, "sines": 4},
            {},
            r"sin_cache.* has shape \[4, 4\], must be \[12, 4\] like cos_cache",
        ),
    ],
)
def test_inputs_that_the_separate_nodes_refuse_are_refused(chosen, change, message):
    session, several = plugin(layer(**chosen), fusion="on"), plugin(layer(**chosen))
    inputs = feed(session, 1) | change
    with pytest.raises(Exception, match=message):
        run(session, inputs, False)
    with pytest.raises(Exception, match=r"Split|RotaryEmbedding"):
        run(several, inputs, False)


def overlapping(arrays: dict[str, np.ndarray], output: str, other: str) -> dict[str, np.ndarray]:
    """Returns copies of arrays, where the last 8 bytes of ``output`` are the first 8 of ``other``."""
    made = {name: array.copy() for name, array in arrays.items()}
    split = arrays[output].nbytes - 8
    shared = np.zeros(split + arrays[other].nbytes, np.uint8)
    for name, begin in ((output, 0), (other, split)):
        part = shared[begin : begin + arrays[name].nbytes]
        part[:] = arrays[name].ravel().view(np.uint8)
        made[name] = part.view(arrays[name].dtype).reshape(arrays[name].shape)
    return made


def run_with(
    session: ort.InferenceSession, memory: dict[str, np.ndarray], outputs: dict[str, str], without: str = ""
) -> None:
    """Runs a step over this memory. ``outputs`` has the name of the memory of each output, and ``without`` is an input
    that has none."""
    binding = session.io_binding()
    for value in session.get_inputs():
        array = memory[value.name]
        address = 0 if value.name == without else array.ctypes.data
        binding.bind_input(value.name, "cpu", 0, array.dtype, array.shape, address)
    for name, place in outputs.items():
        array = memory[place]
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "functional"])
@pytest.mark.parametrize("name", ["bare", "by head", "masked"])
def test_outputs_in_the_memory_of_other_tensors_are_refused(name, in_place):
    """A program may bind one buffer twice. Otherwise a write could change indices after they are checked."""
    session = plugin(layer(**LAYERS[name]), fusion="on")
    arrays = feed(session, 1)
    caches = {"present_k": "past_k", "present_v": "past_v"}
    outputs = {"Y": "Y"} | (caches if in_place else {present: present for present in caches})
    arrays |= {present: arrays[past] + 1 for present, past in caches.items()}
    arrays["Y"] = np.zeros(
        [BATCH, HEADS, 1, SIZE] if LAYERS[name].get("by_head") else [BATCH, 1, HEADS * SIZE], "f4"
    )
    others = {*(value.name for value in session.get_inputs()), *outputs.values()}
    for output, other in itertools.product(outputs, sorted(others)):
        if other == outputs[output]:
            continue
        memory = overlapping(arrays, outputs[output], other)
        before = {name: array.tobytes() for name, array in memory.items()}
        with pytest.raises(Exception, match="kvscatter: the buffer of .* shares memory with that of "):
            run_with(session, memory, outputs)
        assert {name: array.tobytes() for name, array in memory.items()} == before, (output, other)


@pytest.mark.parametrize("wrong", ["shifted", "exchanged", "one"])
def test_a_present_that_is_not_exactly_its_past_is_refused(wrong):
    session = plugin(layer(by_head=True), fusion="on")
    arrays = feed(session, 1)
    arrays["Y"] = np.zeros([BATCH, HEADS, 1, SIZE], "f4")
    arrays["shifted"] = arrays["past_k"] + 1
    memory = overlapping(arrays, "past_k", "shifted")
    presents = {
        "shifted": ["shifted", "past_v"],
        "exchanged": ["past_v", "past_k"],
        "one": ["past_k", "past_k"],
    }[wrong]
    before = {name: array.tobytes() for name, array in memory.items()}
    with pytest.raises(Exception, match="kvscatter: the buffer of present_k shares memory with that of "):
        run_with(session, memory, {"Y": "Y", "present_k": presents[0], "present_v": presents[1]})
    assert {name: array.tobytes() for name, array in memory.items()} == before


def test_memory_of_any_alignment_is_written():
    """ONNX Runtime does not check the alignment of memory that a program binds."""
    model = layer(packed=True, rotation={})
    one, several = plugin(model, fusion="on"), plugin(model)
    results = []
    for session, offset in ((one, 1), (several, 0)):
        arrays = feed(session, 3)
        arrays["Y"] = np.zeros([BATCH, 3, HEADS * SIZE], "f4")
        memory = {}
        for name, array in arrays.items():
            shift = 0 if name == "Y" else offset
            block = np.zeros(array.nbytes + 1, np.uint8)[shift : shift + array.nbytes]
            block[:] = array.ravel().view(np.uint8)
            memory[name] = block.view(array.dtype).reshape(array.shape)
        run_with(session, memory, {"Y": "Y", "present_k": "past_k", "present_v": "past_v"})
        results.append(memory)
    for name in ("Y", "past_k", "past_v"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["past_v", "v", "starts_v", "lengths"])
def test_inputs_without_memory_are_refused(name):
    session = plugin(layer(by_head=True), fusion="on")
    memory = feed(session, 1) | {"Y": np.zeros([BATCH, HEADS, 1, SIZE], "f4")}
    memory["present_v"] = memory["past_v"].copy()
    before = {name: array.tobytes() for name, array in memory.items()}
    with pytest.raises(Exception, match="has no memory"):
        run_with(session, memory, {"Y": "Y", "present_k": "past_k", "present_v": "present_v"}, without=name)
    assert {name: array.tobytes() for name, array in memory.items()} == before
