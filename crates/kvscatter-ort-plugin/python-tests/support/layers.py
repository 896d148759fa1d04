"""Models of one layer of a decoder, whose nodes the plugin can compute as one, and their runs."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import models

BATCH, HEADS, KV_HEADS, SIZE, SLOTS, ANGLES = 2, 4, 2, 8, 16, 12
BY_HEAD = [0, 2, 1, 3]

# The kinds of layers, as arguments of `layer`.
LAYERS = {
    "packed": {"packed": True, "rotation": {}},
    "separate": {"rotation": {}},
    "interleaved": {"packed": True, "rotation": {"interleaved": 1}},
    "partial": {"rotation": {"rotary_embedding_dim": 4}},
    "unrotated": {"packed": True},
    "by head": {"by_head": True, "rotation": {}},
    "bare": {"by_head": True},
    "ring": {"rotation": {}, "mode": "circular"},
    "masked": {"packed": True, "rotation": {}, "mask": True},
}


def layer(
    code=TensorProto.FLOAT,
    packed=False,
    rotation=None,
    by_head=False,
    mask=False,
    mode="linear",
    extra=(),
    past_v="past_v",
    slots=SLOTS,
    reads_sizes=False,
    sines=ANGLES,
    angles=("cos", "sin"),
    size=SIZE,
):
    """Returns a model of one layer, whose queries, keys and values are inputs.

    ``extra`` names values that are outputs too, ``past_v`` the input that the new values are written to, and ``angles``
    the cosines and sines. ``slots`` is the capacity, ``size`` that of a head, and ``sines`` the number of rows of the
    sines. ``reads_sizes`` makes an input of the sizes of the parts that are split.
    """
    widths = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    inputs, initializers, nodes = {}, {}, []

    def node(*arguments, **attributes):
        nodes.append(helper.make_node(*arguments, **attributes))

    if packed:
        heads = HEADS + 2 * KV_HEADS
        inputs["qkv"] = [BATCH, "tokens", heads * size]
        initializers["shape"] = [0, 0, heads, size]
        if not reads_sizes:
            initializers["sizes"] = [HEADS, KV_HEADS, KV_HEADS]
        node("Reshape", ["qkv", "shape"], ["all"])
        node("Split", ["all", "sizes"], list(widths), axis=2)
    else:
        for name, heads in widths.items():
            order = [heads, "tokens"] if by_head else ["tokens", heads]
            inputs[name] = [BATCH, *order, size]
    for name in widths:
        if not by_head:
            node("Transpose", [name], [f"{name}_by_head"], perm=BY_HEAD)
    rows = {name: name if by_head else f"{name}_by_head" for name in widths}
    if rotation is not None:
        for name in ("q", "k"):
            rotated = [rows[name], *angles, "positions"]
            node("RotaryEmbedding", rotated, [f"{name}_rotated"], **rotation)
            rows[name] = f"{name}_rotated"
    for name, past in (("k", "past_k"), ("v", past_v)):
        written = [past, rows[name], f"starts_{name}"]
        node("TensorScatter", written, [f"present_{name}"], axis=2, mode=mode)
    read = [rows["q"], "present_k", "present_v", "mask" if mask else "", "", "", "lengths"]
    node("Attention", read, ["Y" if by_head else "attended"], is_causal=int(not mask))
    if not by_head:
        initializers["hidden"] = [0, 0, HEADS * size]
        node("Transpose", ["attended"], ["by_token"], perm=BY_HEAD)
        node("Reshape", ["by_token", "hidden"], ["Y"])
    cache = [BATCH, KV_HEADS, slots, size]
    floats = inputs | {"past_k": cache, past_v: cache}
    if rotation is not None:
        columns = rotation.get("rotary_embedding_dim", size) // 2
        floats |= {angles[0]: [ANGLES, columns], angles[1]: [sines, columns]}
    integers = {"starts_k": [BATCH], "starts_v": [BATCH], "lengths": [BATCH]}
    if reads_sizes:
        integers["sizes"] = ["parts"]
    if rotation is not None:
        integers["positions"] = [BATCH, "tokens"]
    values = [models.value(name, code, shape) for name, shape in floats.items()]
    values += [models.value(name, TensorProto.INT64, shape) for name, shape in integers.items()]
    if mask:
        values.append(models.value("mask", TensorProto.BOOL, [BATCH, 1, "tokens", slots]))
    outputs = [models.value(name, code) for name in ("Y", "present_k", "present_v", *extra)]
    graph = helper.make_graph(
        nodes,
        "layer",
        values,
        outputs,
        [numpy_helper.from_array(np.array(ints, np.int64), name) for name, ints in initializers.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    made.ir_version = 11
    return made.SerializeToString()


def feed(session: ort.InferenceSession, tokens: int, dtype=np.float32, seed: int = 24) -> dict:
    """Returns random inputs of a step, whose samples have 5 and 2 tokens before it."""
    random = np.random.default_rng(seed)
    starts = np.array([5, 2])
    columns = np.arange(SLOTS)
    positions = starts[:, None] + np.arange(tokens)
    made = {}
    for value in session.get_inputs():
        shape = [{"tokens": tokens, "parts": 3, "slots": SLOTS}.get(size, size) for size in value.shape]
        made[value.name] = random.standard_normal(shape).astype(dtype)
    integers = {"starts_k": starts, "starts_v": starts, "lengths": starts + tokens, "positions": positions}
    integers["sizes"] = np.array([HEADS, KV_HEADS, KV_HEADS])
    integers["mask"] = (columns <= positions[:, None, :, None]) & (columns != 1)
    return {name: integers.get(name, made[name]) for name in made}


def run(session: ort.InferenceSession, inputs: dict, in_place: bool) -> dict[str, np.ndarray]:
    """Returns the outputs of a step. ``in_place`` binds each cache as past and present."""
    binding = session.io_binding()
    # A value is the memory of its array, which must live as long.
    arrays = {name: array.copy() for name, array in inputs.items()}
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        past = name.replace("present", "past")
        if in_place and past in values and past != name:
            binding.bind_ortvalue_output(name, values[past])
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    return dict(zip(names, (output.numpy().copy() for output in binding.get_outputs()), strict=True))


def check_refusal(session: ort.InferenceSession, inputs: dict, message: str) -> None:
    """Checks that a run in place fails with this message, and that no cache has changed."""
    caches = {name: array for name, array in inputs.items() if name.startswith("past")}
    bound = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in caches.items()}
    binding = session.io_binding()
    for name, array in inputs.items():
        if name not in bound:
            binding.bind_cpu_input(name, array)
    for name, cache in bound.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past", "present"), cache)
    for output in session.get_outputs():
        if not output.name.startswith("present"):
            binding.bind_output(output.name)
    before = {name: cache.numpy().tobytes() for name, cache in bound.items()}
    with pytest.raises(Exception, match=message):
        session.run_with_iobinding(binding)
    assert {name: cache.numpy().tobytes() for name, cache in bound.items()} == before
