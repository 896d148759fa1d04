"""Which GroupQueryAttention nodes the provider takes, and which it leaves to the runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from support import group_query, models
from support.group_query import COUNTS, OUTPUTS
from support.sessions import PROVIDER, VERSION, assignment, plugin

CPU = "CPUExecutionProvider"
FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
DOUBLE, INT8, INT32, INT64 = TensorProto.DOUBLE, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64
NEVER = (99, 0)


def inputs_of(code: int = FLOAT, cache: int | None = None, without=(), **others: int) -> dict[str, int]:
    """Returns the types of the inputs that every node has, without some, and of others."""
    past = dict.fromkeys(["past_key", "past_value"], cache or code)
    integers = dict.fromkeys(["seqlens_k", "total_sequence_length"], INT32)
    all_inputs = {"query": code} | past | integers | others
    return {name: code for name, code in all_inputs.items() if name not in without}


KEY_VALUE = dict.fromkeys(["key", "value"], FLOAT)
ANGLES = dict.fromkeys(["cos_cache", "sin_cache"], FLOAT)


def is_ours(inputs, outputs=tuple(OUTPUTS[:3]), options=None, **attributes) -> bool | None:
    """Returns whether the plugin has the node, or None if the runtime does not load the model."""
    model = group_query.model(inputs, outputs, **(COUNTS | attributes))
    try:
        session = plugin(model, **(options or {}))
    except Exception as failure:
        assert "kvscatter" not in str(failure), failure
        return None
    return assignment(session) == {PROVIDER: ["GroupQueryAttention"]}


@pytest.mark.parametrize("code", [FLOAT, FLOAT16, BFLOAT16], ids=["float", "float16", "bfloat16"])
def test_every_set_of_inputs_is_taken(code):
    angles, separate = (dict.fromkeys(names, code) for names in (ANGLES, KEY_VALUE))
    for others in (
        {},
        separate,
        {"attention_bias": code},
        {"head_sink": code},
        separate | {"attention_bias": code, "head_sink": code},
    ):
        assert is_ours(inputs_of(code, **others)), others
        # Angles without a rotation are not used.
        for rotation in ({"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {}):
            assert is_ours(inputs_of(code, **others, **angles), **rotation), others
            assert is_ours(inputs_of(code, **others, **angles, position_ids=INT64), **rotation), others


@pytest.mark.parametrize("cache", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
def test_caches_of_half_the_size_are_taken(cache):
    assert is_ours(inputs_of(FLOAT, cache)) == (True if VERSION >= (1, 25) else None)


# The attributes that the kernel reads or accepts, and the first version of ONNX Runtime that has each.
TAKEN = [
    ({"scale": 0.3, "softcap": 2.0, "local_window_size": 4}, (1, 24)),
    ({"scale": 0.0, "softcap": 0.0, "local_window_size": -1}, (1, 24)),
    ({"smooth_softmax": 1}, (1, 24)),
    ({"smooth_softmax": 0, "qk_output": 0, "rotary_interleaved": 1}, (1, 24)),
    ({"k_quant_type": "NONE", "v_quant_type": "NONE", "kv_cache_bit_width": 0}, (1, 25)),
    ({"qk_norm_epsilon": 1e-5}, (1, 28)),
    ({"sliding_window_cache": 0}, (1, 29)),
    ({"causal": 1}, (1, 30)),
    ({"q_norm_epsilon": 1e-5, "k_norm_epsilon": 1e-5}, (1, 32)),
]


@pytest.mark.parametrize(("attributes", "since"), TAKEN, ids=str)
def test_attributes_are_taken(attributes, since):
    assert is_ours(inputs_of(), **attributes) == (True if since <= VERSION else None)


# The attributes that the kernel does not support, and the first version of ONNX Runtime that has each.
LEFT_ATTRIBUTES = [
    ({"local_window_size": 0}, (1, 24)),
    ({"local_window_size": -2}, (1, 24)),
    ({"local_window_size": 1 << 31}, (1, 24)),
    ({"do_rotary": 2}, (1, 24)),
    ({"smooth_softmax": 2}, (1, 24)),
    ({"scale": -1.0}, (1, 24)),
    ({"scale": float("nan")}, (1, 24)),
    ({"softcap": -1.0}, (1, 24)),
    ({"num_heads": 3}, (1, 24)),
    ({"qk_output": 1}, (1, 24)),
    ({"k_quant_type": "PER_TENSOR"}, (1, 25)),
    ({"v_quant_type": "PER_CHANNEL"}, (1, 25)),
    ({"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}, (1, 25)),
    ({"kv_cache_bit_width": 8}, (1, 25)),
    ({"sliding_window_cache": 1, "local_window_size": 4}, (1, 29)),
    ({"causal": 0}, (1, 30)),
    ({"is_causal": 1}, NEVER),
    ({"mystery": 1}, NEVER),
]


@pytest.mark.parametrize(("attributes", "since"), LEFT_ATTRIBUTES, ids=str)
def test_attributes_that_the_kernel_does_not_support_are_left(attributes, since):
    assert is_ours(inputs_of(**ANGLES), **attributes) is (False if since <= VERSION else None)


def test_a_string_is_compared_up_to_its_end():
    """No version has this value. The runtime's own kernel refuses it, except in two versions."""
    expected = False if VERSION in ((1, 25), (1, 26)) else None
    assert is_ours(inputs_of(), k_quant_type="NONE\0X") is expected


# The inputs and outputs that the kernel does not support, and the first version that loads such a model.
LEFT = {
    "k_scale": (inputs_of(k_scale=FLOAT), OUTPUTS[:3], (1, 25)),
    "v_scale": (inputs_of(v_scale=FLOAT), OUTPUTS[:3], (1, 25)),
    "norms": (inputs_of(q_norm_weight=FLOAT, k_norm_weight=FLOAT), OUTPUTS[:3], (1, 28)),
    "query_seqlens": (inputs_of(query_seqlens=INT32), OUTPUTS[:3], (1, 32)),
    "output_qk": (inputs_of(), OUTPUTS, (1, 24)),
    "no past": (inputs_of(without=["past_key", "past_value"]), OUTPUTS[:3], (1, 24)),
    "one present": (inputs_of(), OUTPUTS[:2], (1, 27)),
    "a key without a value": (inputs_of(key=FLOAT), OUTPUTS[:3], (1, 24)),
    "cosines without sines": (inputs_of(cos_cache=FLOAT), OUTPUTS[:3], (1, 24)),
    "integers": (inputs_of(INT8), OUTPUTS[:3], NEVER),
    "doubles": (inputs_of(DOUBLE), OUTPUTS[:3], NEVER),
    "a cache of integers": (inputs_of(FLOAT, INT8), OUTPUTS[:3], (1, 25)),
    "a longer cache type": (inputs_of(FLOAT16, FLOAT), OUTPUTS[:3], (1, 25)),
    "two cache types": (inputs_of() | {"past_value": FLOAT16}, OUTPUTS[:3], NEVER),
    "two types": (inputs_of(head_sink=FLOAT16), OUTPUTS[:3], NEVER),
    "long lengths": (inputs_of() | {"seqlens_k": INT64}, OUTPUTS[:3], NEVER),
}


@pytest.mark.parametrize("name", LEFT)
def test_inputs_and_outputs_that_the_kernel_does_not_support_are_left(name):
    inputs, outputs, since = LEFT[name]
    assert is_ours(inputs, outputs) is (False if since <= VERSION else None)


def test_a_sink_and_smooth_weights_are_left():
    """The versions of the runtime do not document which of the two counts."""
    assert is_ours(inputs_of(head_sink=FLOAT), smooth_softmax=0)
    assert is_ours(inputs_of(head_sink=FLOAT), smooth_softmax=1) is False


def test_a_node_with_one_past_is_left():
    # Only 1.24 loads such a model.
    assert not is_ours(inputs_of(without=["past_value"]))


def test_a_rotation_without_angles_is_left():
    assert is_ours(inputs_of(), do_rotary=1) is False


def test_presents_may_be_absent():
    assert is_ours(inputs_of(), OUTPUTS[:1]) == (True if VERSION >= (1, 27) else None)


def test_the_option_leaves_the_operator_to_the_runtime():
    assert is_ours(inputs_of(), options={"attention": "on"})
    assert is_ours(inputs_of(), options={"attention": "off"}) is False
    entry = {f"ep.{PROVIDER.lower()}.attention": "off"}
    assert is_ours(inputs_of(), options={"entries": entry}) is False
    # Without the option, no provider has kernels for these types.
    assert is_ours(inputs_of(BFLOAT16), options={"attention": "off"}) is None


def test_operators_of_other_domains_are_not_meant():
    """A function may have the name of the operator. The runtime replaces it by its body."""
    node = helper.make_node("GroupQueryAttention", ["x"], ["y"], domain="mine")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    body = [helper.make_node("Neg", ["x"], ["y"])]
    function = helper.make_function("mine", "GroupQueryAttention", ["x"], ["y"], body, opsets)
    graph = helper.make_graph([node], "graph", [models.value("x", FLOAT)], [models.value("y", FLOAT)])
    made = helper.make_model(graph, opset_imports=opsets, functions=[function])
    made.ir_version = 10
    session = plugin(made.SerializeToString())
    assert assignment(session) == {CPU: ["Neg"]}
    assert session.run(None, {"x": np.ones(1, np.float32)})[0].tolist() == [-1]


def test_layers_of_one_graph_are_taken_one_by_one():
    """The plugin takes the other nodes of a model in which it cannot compute one."""
    nodes, inputs = [], {}
    for number, window in enumerate([4, 0, -1]):
        layer = {f"past_{name}{number}": FLOAT for name in ("key", "value")}
        inputs |= layer | inputs_of(without=["past_key", "past_value"])
        query = f"y{number - 1}" if number else "query"
        names = [query, "new", "new", *layer, "seqlens_k", "total_sequence_length"]
        outputs = [f"y{number}", f"key{number}", f"value{number}"]
        attributes = COUNTS | {"local_window_size": window}
        node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes)
        nodes.append(node)
    inputs["new"] = FLOAT
    values = [models.value(name, code) for name, code in inputs.items()]
    outputs = [models.value(name, FLOAT) for node in nodes for name in node.output]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(helper.make_graph(nodes, "graph", values, outputs), opset_imports=opsets)
    made.ir_version = 10
    taken = assignment(plugin(made.SerializeToString()))
    assert taken == {PROVIDER: 2 * ["GroupQueryAttention"], CPU: ["GroupQueryAttention"]}
