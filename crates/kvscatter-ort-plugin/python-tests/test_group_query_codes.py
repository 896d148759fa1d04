"""GroupQueryAttention over caches of int8 codes, whose scales are inputs."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from support import group_query
from support.group_query import COUNTS, HEADS, KV_HEADS, PRESENTS, SIZE, feed
from support.layers import check_refusal, run
from support.sessions import PROVIDER, VERSION, assignment, builtin, plugin

KINDS = {"PER_TENSOR": (1,), "PER_CHANNEL": (1, KV_HEADS, 1, SIZE)}
# The first version whose schema has the attributes, and the first one whose own kernel computes all calls. Version 1.27
# gives other results for packed inputs.
HAS_SCALES, COMPUTES_CODES = (1, 25), (1, 28)

pytestmark = pytest.mark.skipif(VERSION < HAS_SCALES, reason="the schema has no scales")


def types(arrays: dict) -> dict[str, int]:
    """Returns the types of arrays as ONNX's numbers."""
    return {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}


def codes(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the codes of rows by head, as the runtime computes them."""
    scaled = numbers * (
        np.float32(1) / scales.reshape((1, -1, 1, numbers.shape[-1]) if scales.size > 1 else ())
    )
    return np.clip(np.rint(scaled), -128, 127).astype("i1")


def call(kinds: tuple[str, str], lengths, tokens: int, seed: int = 0, **options) -> dict:
    """Returns the inputs of a call over codes."""
    inputs = feed(lengths, tokens, seed=seed, **options)
    random = np.random.default_rng(seed)
    for past, scale, kind in zip(PRESENTS.values(), ("k_scale", "v_scale"), kinds, strict=True):
        inputs[past] = random.integers(-127, 128, inputs[past].shape).astype("i1")
        inputs[scale] = random.uniform(0.005, 0.03, KINDS[kind]).astype("f4")
    return inputs


def model(inputs: dict, kinds: tuple[str, str], **attributes) -> bytes:
    attributes |= {"k_quant_type": kinds[0], "v_quant_type": kinds[1], "kv_cache_bit_width": 8}
    return group_query.model(types(inputs), **COUNTS, **attributes)


@pytest.mark.skipif(VERSION < COMPUTES_CODES, reason="the runtime does not compute all of them")
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "functional"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "separate"])
@pytest.mark.parametrize(
    "attributes", [{}, {"do_rotary": 1}, {"local_window_size": 3, "softcap": 2.0}], ids=str
)
@pytest.mark.parametrize("kinds", [("PER_TENSOR",) * 2, ("PER_CHANNEL",) * 2])
def test_codes_are_those_of_the_runtime(kinds, attributes, packed, in_place):
    for lengths, tokens in [([7], 1), ([9, 4], 1), ([6], 3), ([5, 5], 5)]:
        inputs = call(kinds, lengths, tokens, seed=tokens, packed=packed)
        if not attributes.get("do_rotary"):
            inputs = {name: array for name, array in inputs.items() if not name.endswith("_cache")}
        made = model(inputs, kinds, **attributes)
        session = plugin(made, 2)
        assert assignment(session) == {PROVIDER: ["GroupQueryAttention"]}
        got = run(session, inputs, in_place)
        expected = run(builtin(made), inputs, in_place)
        for present in PRESENTS:
            for sample, length in enumerate(lengths):
                rows = got[present][sample, :, :length]
                assert rows.tobytes() == expected[present][sample, :, :length].tobytes(), present
        np.testing.assert_allclose(got["output"], expected["output"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kinds", [("PER_TENSOR",) * 2, ("PER_CHANNEL", "PER_TENSOR")])
def test_codes_are_those_of_the_rule(kinds):
    """The codes, and the attention over what they stand for, are those of NumPy."""
    inputs = call(kinds, [7, 4], 1, packed=False)
    inputs = {name: array for name, array in inputs.items() if not name.endswith("_cache")}
    got = run(plugin(model(inputs, kinds)), inputs, True)
    read = []
    for (present, past), new, scale in zip(
        PRESENTS.items(), ("key", "value"), ("k_scale", "v_scale"), strict=True
    ):
        expected = inputs[past].copy()
        rows = codes(inputs[new].reshape(2, 1, KV_HEADS, SIZE).swapaxes(1, 2), inputs[scale])
        for sample, length in enumerate([7, 4]):
            expected[sample, :, length - 1] = rows[sample, :, 0]
        assert got[present].tobytes() == expected.tobytes()
        read.append(expected.astype("f8") * inputs[scale])
    query = inputs["query"].astype("f8").reshape(2, KV_HEADS, HEADS // KV_HEADS, SIZE)
    scores = query @ read[0].swapaxes(-1, -2) / np.sqrt(SIZE)
    is_hidden = np.arange(scores.shape[-1]) >= np.array([7, 4])[:, None, None, None]
    scores = np.where(is_hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ read[1]
    np.testing.assert_allclose(got["output"].reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", ["k_scale", "v_scale"])
def test_another_number_of_scales_is_refused_before_a_write(scale):
    kinds = ("PER_CHANNEL", "PER_CHANNEL")
    inputs = call(kinds, [5], 1)
    session = plugin(model(inputs, kinds, do_rotary=1))
    inputs[scale] = inputs[scale].reshape(-1)[:-1].copy()
    check_refusal(session, inputs, rf"{scale} has 31 scales, must have 32")


def test_other_codes_are_left_to_the_runtime():
    inputs = call(("PER_TENSOR",) * 2, [5], 1)
    chosen = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    codes_of = types(inputs)

    def is_ours(names, **attributes):
        """Returns whether the provider has the node, or the runtime's refusal of the model."""
        try:
            session = plugin(group_query.model(names, **COUNTS, **chosen, **attributes))
        except Exception as failure:
            return str(failure)
        return PROVIDER in assignment(session)

    assert is_ours(codes_of, kv_cache_bit_width=8) is True
    halves = {
        name: TensorProto.FLOAT16 if code == TensorProto.FLOAT else code for name, code in codes_of.items()
    }
    halves |= {"k_scale": TensorProto.FLOAT, "v_scale": TensorProto.FLOAT}
    for names, width in ((codes_of, 4), (codes_of, 0), (halves, 8)):
        answer = is_ours(names, kv_cache_bit_width=width)
        assert answer is False or (isinstance(answer, str) and "kvscatter" not in answer), (width, answer)
