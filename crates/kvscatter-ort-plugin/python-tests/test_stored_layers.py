"""Layers whose caches are narrower than their keys and values are one node, which stores and reads the same."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support.layers import KV_HEADS, LAYERS, SIZE, SLOTS, check_refusal, feed, layer, run
from support.sessions import PROVIDER, assignment, plugin
from support.stored import codes, hadamard, stored

# Rows of these sizes are rotated in blocks of 16 and of 64.
SIZES = [48, 64]


def inputs_of(session, tokens, dtype=np.float32):
    """Returns inputs whose caches have the types that the model declares, and valid rows."""
    inputs = feed(session, tokens, dtype)
    types = {"tensor(int8)": "i1", "tensor(float16)": "f2"}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            made = inputs[value.name]
            made = (
                np.abs(made) / 50
                if value.name.endswith("scale")
                else made * (60 if "int8" in value.type else 1)
            )
            inputs[value.name] = made.astype(types.get(value.type, "f4"))
    return inputs


@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_stores_and_computes_what_its_nodes_do(name, kind):
    model = stored(layer(size=64, **LAYERS[name]), kind)
    one, several = plugin(model, 2, fusion="on"), plugin(model, 2)
    assert set(assignment(one)) == {PROVIDER}
    for tokens, in_place in itertools.product((1, 3, 1), (True, False)):
        inputs = inputs_of(one, tokens)
        got, expected = (run(session, inputs, in_place) for session in (one, several))
        for output, values in expected.items():
            # A last bit of a rotated key may change its code by one, and a rounded half by one unit.
            unit = {"i1": 1, "f2": 1e-3}.get(values.dtype.str[1:], 1e-2 if output == "Y" else 1e-6)
            difference = np.abs(got[output].astype("f8") - values.astype("f8"))
            assert difference.max() <= unit * max(1, np.abs(values).max() if unit < 1 else 1), output
        assert got["present_v"].tobytes() == expected["present_v"].tobytes()


@pytest.mark.parametrize("dequantize", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_stored_rows_are_those_of_the_rule(size, dequantize):
    """The codes and scales are those of NumPy for the same row, and bytes that are not written stay."""
    session = plugin(stored(layer(by_head=True, size=size), "int8", dequantize=dequantize), fusion="on")
    assert set(assignment(session)) == {PROVIDER}
    inputs = inputs_of(session, 3)
    rows = {"k": inputs["k"] @ hadamard(size), "v": inputs["v"]}
    got = run(session, inputs, True)
    for name, new in rows.items():
        new_codes, new_scales = codes(new)
        # The sums of a product with the matrix may have another order.
        unit = 1 if name == "k" else 0
        for of, values, bound in (("", new_codes, unit), ("_scale", new_scales, unit * 1e-6)):
            expected = inputs[f"past_{name}{of}"].copy()
            for sample, start in enumerate(inputs["starts_k"]):
                expected[sample, :, start : start + 3] = values[sample]
            written = got[f"present_{name}{of}"]
            assert np.abs(written.astype("f8") - expected.astype("f8")).max() <= bound
            assert (written != expected).mean() <= 0.01 * unit or of
    # What is read is the stored value.
    read = {name: got[f"present_{name}"].astype("f8") * got[f"present_{name}_scale"] for name in rows}
    query = (inputs["q"] @ hadamard(size)).astype("f8").reshape(2, KV_HEADS, -1, 3, size)
    scores = query @ read["k"][:, :, None].swapaxes(-1, -2) / np.sqrt(size)
    positions = inputs["starts_k"][:, None] + np.arange(3)
    scores = np.where(np.arange(SLOTS) <= positions[:, None, None, :, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ read["v"][:, :, None]
    np.testing.assert_allclose(got["Y"], expected.reshape(got["Y"].shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["q", "k"])
def test_a_rotation_of_one_side_is_computed_as_it_is(name):
    model = stored(layer(by_head=True, size=64), "int8", rotated=(name,))
    one, several = plugin(model, fusion="on"), plugin(model)
    inputs = inputs_of(one, 1)
    got, expected = (run(session, inputs, True)["Y"] for session in (one, several))
    np.testing.assert_allclose(got, expected, atol=2e-2)
    both = plugin(stored(layer(by_head=True, size=64), "int8"), fusion="on")
    assert np.abs(run(both, inputs, True)["Y"] - got).max() > 0.1


def set_attribute(operator, **attributes):
    def change(node):
        if node.op_type == operator:
            kept = [it for it in node.attribute if it.name not in attributes]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(helper.make_attribute(*it) for it in attributes.items())

    return change


def other_input(operator, index, name):
    def change(node):
        if node.op_type == operator:
            node.input[index] = name

    return change


@pytest.mark.parametrize(
    ("change", "is_fused"),
    [
        (set_attribute("ReduceMax", keepdims=1, noop_with_empty_axes=0), True),
        (set_attribute("QuantizeLinear", axis=-1, block_size=64, output_dtype=TensorProto.INT8), True),
        (set_attribute("QuantizeLinear", axis=3, block_size=64, output_dtype=3, precision=10), False),
        (other_input("Max", 1, "factor"), False),
        (other_input("Mul", 1, "least"), False),
    ],
    ids=["the same", "the same axis", "another precision", "another floor", "another factor"],
)
def test_other_rules_are_not_taken_for_ours(change, is_fused):
    """Nodes with other constants are computed as they are."""
    session = plugin(stored(layer(by_head=True, size=64), "int8", change=change), fusion="on")
    assert (set(assignment(session)) == {PROVIDER}) == is_fused


def test_a_row_with_nan_is_read_as_nan():
    session = plugin(stored(layer(by_head=True, size=64), "int8"), fusion="on")
    for number in (np.nan, np.inf, -np.inf):
        inputs = inputs_of(session, 1)
        inputs["v"][0, 1, 0, 7] = number
        got = run(session, inputs, True)
        assert np.isnan(got["present_v_scale"][0, 1, 5, 0])
        assert not got["present_v"][0, 1, 5].any()
        # Two query heads of the first sample read this head.
        assert np.isnan(got["Y"][0, 2:]).all()
        assert np.isfinite(got["Y"][1]).all()
        assert np.isfinite(got["Y"][0, :2]).all()


def test_the_scale_of_a_slot_that_is_not_seen_has_no_influence():
    session = plugin(stored(layer(by_head=True, size=64), "int8"), fusion="on")
    inputs = inputs_of(session, 1)
    expected = run(session, inputs, True)["Y"]
    for name in ("past_k_scale", "past_v_scale"):
        inputs[name][0, :, 6:] = np.nan
        inputs[name][1, :, 3:] = np.inf
    assert run(session, inputs, True)["Y"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts_k": [5, SLOTS]}, r"TensorScatter linear mode: write_indices\[1\]"),
        ({"starts_v": [5, -1]}, r"TensorScatter: write_indices\[1\] = -1 is negative"),
        ({"lengths": [6, SLOTS + 1]}, r"Attention: nonpad_kv_seqlen\[1\] = 17: must be between 0 and 16"),
    ],
)
def test_an_error_changes_none_of_the_four_caches(change, message):
    session = plugin(stored(layer(by_head=True, size=64), "int8"), fusion="on")
    inputs = inputs_of(session, 1) | {name: np.array(values, np.int64) for name, values in change.items()}
    assert sum(name.startswith("past") for name in inputs) == 4
    check_refusal(session, inputs, message)


def test_scales_of_another_capacity_are_refused():
    model = stored(layer(by_head=True, size=64, slots="slots"), "int8")
    session = plugin(model, fusion="on")
    inputs = inputs_of(session, 1)
    inputs["past_k_scale"] = inputs["past_k_scale"][:, :, 1:].copy()
    with pytest.raises(Exception, match=f"has {SLOTS - 1} slots of scales and {SLOTS} of codes"):
        run(session, inputs, False)


def test_nodes_without_rotation_are_fused_for_small_heads():
    session = plugin(stored(layer(size=SIZE, by_head=True), "int8", rotated=()), fusion="on")
    assert set(assignment(session)) == {PROVIDER}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_bfloat16_are_fused(name):
    session = plugin(stored(layer(size=64, **LAYERS[name]), "bfloat16"), fusion="on")
    assert set(assignment(session)) == {PROVIDER}


def test_keys_and_values_of_two_types_are_not_fused():
    """Attention reads one type, so the nodes of such a layer stay apart."""

    def to_bfloat16(node):
        if node.op_type == "Cast" and node.output[0].startswith("v_half"):
            node.attribute[0].i = TensorProto.BFLOAT16

    model = onnx.load_from_string(stored(layer(by_head=True, size=64), "float16", change=to_bfloat16))
    for value in (*model.graph.input, *model.graph.output):
        if value.name in ("past_v", "present_v"):
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    session = plugin(model.SerializeToString(), fusion="on")
    assert "Cast" not in assignment(session)[PROVIDER]
