"""Which Attention nodes the provider takes, and the errors and the memory of those that it has taken."""

import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from support import attention, models
from support.attention import random, reference, tensor
from support.elements import BY_NAME
from support.sessions import CAPS_BEFORE_MASK, HAS_WINDOWS, PROVIDER, assignment, builtin, plugin, run
from support.tensors import Tensor, same

CPU = "CPUExecutionProvider"
FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
DOUBLE, BOOL, INT32, INT64 = TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
QKV = {"Q": FLOAT, "K": FLOAT, "V": FLOAT}
PAST = {"past_key": FLOAT, "past_value": FLOAT}
RANK_4 = dict.fromkeys("QKV", [None] * 4)
RANK_3 = dict.fromkeys("QKV", [None] * 3)


def of_type(code: int) -> dict[str, int]:
    return dict.fromkeys("QKV", code)


def is_ours(inputs, outputs=("Y",), opset: int = 24, shapes=None, **attributes) -> bool:
    """Returns whether the plugin has the node. A model that no provider can run is not the plugin's."""
    try:
        session = plugin(attention.model(inputs, list(outputs), opset, shapes, **attributes))
    except Exception as failure:
        assert "kvscatter" not in str(failure), failure
        return False
    return assignment(session) == {PROVIDER: ["Attention"]}


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("code", [FLOAT, FLOAT16, BFLOAT16], ids=["float", "float16", "bfloat16"])
def test_every_set_of_inputs_and_outputs_is_taken(code, opset):
    of = of_type(code)
    past = dict.fromkeys(PAST, code)
    for outputs in (["Y"], ["Y", "qk_matmul_output"], attention.OUTPUTS[:3], attention.OUTPUTS):
        for inputs in (
            of,
            of | {"attn_mask": BOOL},
            of | {"attn_mask": code},
            of | {"attn_mask": BOOL} | past,
        ):
            assert is_ours(inputs, outputs, opset), (inputs, outputs)
    if opset > 23:
        assert is_ours(of | {"nonpad_kv_seqlen": INT64}, opset=opset)
        inputs = of | {"attn_mask": code, "nonpad_kv_seqlen": INT64}
        assert is_ours(inputs, ["Y", "qk_matmul_output"], opset)
        # The specification advises against presents here, and 1.32 refuses them in operator set 25.
        assert is_ours(inputs, attention.OUTPUTS, opset) == (opset == 24 or not HAS_WINDOWS)


def test_attributes_are_taken():
    for attributes in (
        {"is_causal": 1, "scale": 0.5, "softcap": 2.0},
        *({"qk_matmul_output_mode": mode} for mode in range(4)),
        *({"softmax_precision": precision} for precision in (FLOAT, FLOAT16, DOUBLE, BFLOAT16)),
    ):
        assert is_ours(QKV, **attributes), attributes
    assert is_ours(QKV, shapes=RANK_3, q_num_heads=4, kv_num_heads=2)
    assert is_ours(QKV, opset=25, left_window_size=3, right_window_size=0) == HAS_WINDOWS


@pytest.mark.parametrize(
    "inputs",
    [
        of_type(DOUBLE),
        QKV | {"V": FLOAT16},
        QKV | {"attn_mask": INT32},
        QKV | {"attn_mask": FLOAT16},
        QKV | {"attn_mask": DOUBLE},
        QKV | {"past_key": FLOAT},
        QKV | PAST | {"nonpad_kv_seqlen": INT64},
    ],
    ids=lambda inputs: "-".join(f"{name}{code}" for name, code in inputs.items()),
)
def test_inputs_that_the_kernel_does_not_support_are_left(inputs):
    assert not is_ours(inputs)


@pytest.mark.parametrize(
    "attributes",
    [
        {"is_causal": 2},
        {"qk_matmul_output_mode": 4},
        {"softmax_precision": INT32},
        {"softcap": -1.0},
        {"scale": -1.0},
        {"scale": float("nan")},
        {"q_num_heads": 4},
    ],
    ids=str,
)
def test_attributes_that_the_kernel_does_not_support_are_left(attributes):
    assert not is_ours(QKV, shapes=RANK_4, **attributes)


def test_shapes_that_disagree_are_left():
    declared = {"Q": (1, 4, 3, 8), "K": (1, 2, 5, 8), "V": (1, 2, 5, 6)}
    assert is_ours(QKV, shapes=declared)
    for name, shape in {"K": (1, 2, 5, 7), "V": (1, 2, 4, 6), "Q": (1, 3, 3, 8)}.items():
        assert not is_ours(QKV, shapes=declared | {name: shape}), name
    assert not is_ours(QKV, shapes=RANK_3)
    assert not is_ours(QKV, outputs=["Y", "present_key"])


def test_the_option_leaves_attention_to_others():
    model = attention.model(QKV, ["Y"], 24)
    for value, provider in {"on": PROVIDER, "off": CPU}.items():
        assert assignment(plugin(model, attention=value)) == {provider: ["Attention"]}
        entry = {f"ep.{PROVIDER.lower()}.attention": value}
        assert assignment(plugin(model, entries=entry)) == {provider: ["Attention"]}
    both = [
        helper.make_node("TensorScatter", ["K", "update"], ["present"]),
        helper.make_node("Attention", ["Q", "present", "V"], ["Y"]),
    ]
    values = [models.value(name, FLOAT) for name in ("Q", "K", "V", "update", "Y")]
    graph = models.model(both, values[:4], values[4:])
    assert assignment(plugin(graph)) == {PROVIDER: ["TensorScatter", "Attention"]}
    assert assignment(plugin(graph, attention="off")) == {PROVIDER: ["TensorScatter"], CPU: ["Attention"]}


def test_nodes_of_other_providers_share_the_memory():
    """No copies between providers: the graph has the nodes of the model and no others."""
    nodes = [
        helper.make_node("Neg", ["Q"], ["a"]),
        helper.make_node("Attention", ["a", "K", "V"], ["b"]),
        helper.make_node("Neg", ["b"], ["Y"]),
    ]
    values = [models.value(name, FLOAT) for name in ("Q", "K", "V", "Y")]
    session = plugin(models.model(nodes, values[:3], values[3:]))
    assert assignment(session) == {PROVIDER: ["Attention"], CPU: ["Neg", "Neg"]}
    q, k, v = (random(shape, seed) for seed, shape in enumerate([(1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4)]))
    (y,) = session.run(None, {"Q": -q, "K": k, "V": v})
    np.testing.assert_allclose(-y, reference(q, k, v), atol=1e-6)


Q, K, V = random((2, 2, 3, 8), 1), random((2, 2, 5, 8), 2), random((2, 2, 5, 6), 3)

# name: the inputs, and the message.
REFUSED = {
    "negative length": ({"nonpad_kv_seqlen": [1, -1]}, "nonpad_kv_seqlen[1] = -1: must be between 0 and 5"),
    "length above the capacity": (
        {"nonpad_kv_seqlen": [6, 0]}, "nonpad_kv_seqlen[0] = 6: must be between 0 and 5",
    ),
    "largest length": (
        {"nonpad_kv_seqlen": [0, 2**63 - 1]},
        f"nonpad_kv_seqlen[1] = {2**63 - 1}: must be between 0 and 5",
    ),
    "lengths of another batch": (
        {"nonpad_kv_seqlen": [1, 2, 3]}, "nonpad_kv_seqlen has 3 elements, must have 2",
    ),
    "lengths of rank 2": ({"nonpad_kv_seqlen": [[1, 2]]}, "nonpad_kv_seqlen has rank 2, must be 1"),
    "another head size": (
        {"K": K[..., :7]}, "K is [2, 2, 5, 7] as [batch, heads, length, size], must be [2, 2, 5, 8]",
    ),
    "fewer values": (
        {"V": V[:, :, :4]}, "V is [2, 2, 4, 6] as [batch, heads, length, size], must be [2, 2, 5, 6]",
    ),
    "another batch": ({"K": K[:1]}, "K is [1, 2, 5, 8] as [batch, heads, length, size], must be [2, 2, 5, 8]"),
    "heads that are no groups": ({"Q": np.repeat(Q, 2, 1)[:, :3]}, "3 heads of Q are not a multiple of 2"),
    "another rank": ({"K": K[0]}, "K has rank 3, must be 4"),
    "rank 3 without heads": (
        {"Q": Q[0], "K": K[0], "V": V[0]}, "inputs of rank 3 need q_num_heads and kv_num_heads",
    ),
    "a mask that does not broadcast": (
        {"attn_mask": np.ones((2, 5), bool)}, "attn_mask has shape [2, 5], which does not broadcast",
    ),
    "a mask that is too long": ({"attn_mask": np.ones((3, 6), bool)}, "attn_mask has shape [3, 6]"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_says_why_and_writes_nothing(name):
    changed, message = REFUSED[name]
    arrays = {"Q": Q, "K": K, "V": V} | {key: np.asarray(values) for key, values in changed.items()}
    tensors = {key: tensor(np.ascontiguousarray(values)) for key, values in arrays.items()}
    session = plugin(attention.model({key: it.element.code for key, it in tensors.items()}, ["Y"], 24))
    y = Tensor.garbage(BY_NAME["float"], (2, 2, 3, 6))
    before = y.bytes()
    with pytest.raises(Exception, match=re.escape(f"Attention: {message}")):
        run(session, tensors, {"Y": y})
    same(y, before)


def test_a_session_goes_on_after_an_error():
    session = plugin(attention.model(QKV | {"nonpad_kv_seqlen": INT64}, ["Y"], 24, is_causal=1))
    for lengths in ([3, 5], [3, 6], [4, 4], [-1, 5], [5, 3]) * 5:
        feed = {"Q": Q, "K": K, "V": V, "nonpad_kv_seqlen": np.array(lengths)}
        if min(lengths) >= 0 and max(lengths) <= 5:
            np.testing.assert_allclose(session.run(None, feed)[0], reference(Q, K, V, lengths), atol=1e-6)
        else:
            with pytest.raises(Exception, match="nonpad_kv_seqlen"):
                session.run(None, feed)


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("name", ["Q", "K", "V"])
def test_an_output_in_the_memory_of_an_input_is_refused(name, offset):
    """An input that is not aligned is read from a copy, and the output would overwrite it."""
    memory = Tensor.painted(BY_NAME["float"], (256,), 1)
    before = memory.bytes()
    session = plugin(attention.model(QKV, ["Y"], 24))
    binding = session.io_binding()
    at = {"Q": 0, "K": 64, "V": 128}
    for key, place in at.items():
        binding.bind_input(key, "cpu", 0, np.float32, (1, 2, 4, 8), memory.address + 4 * place + offset)
    binding.bind_output("Y", "cpu", 0, np.float32, (1, 2, 4, 8), memory.address + 4 * (at[name] + 3))
    with pytest.raises(Exception, match=f"Attention: the buffer of Y shares memory with that of {name}"):
        session.run_with_iobinding(binding)
    same(memory, before)


def test_inputs_may_begin_anywhere_and_outputs_may_not():
    session = plugin(attention.model(QKV, ["Y"], 24))
    y = Tensor.garbage(BY_NAME["float"], (2, 2, 3, 6))
    binding, alive = session.io_binding(), []
    for key, values in {"Q": Q, "K": K, "V": V}.items():
        memory = np.zeros(values.nbytes + 8, np.uint8)
        alive.append(memory)
        memory[1 : 1 + values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)
        binding.bind_input(key, "cpu", 0, np.float32, values.shape, memory.ctypes.data + 1)
    binding.bind_output("Y", "cpu", 0, np.float32, y.shape, y.address)
    session.run_with_iobinding(binding)
    y.check_guards()
    np.testing.assert_allclose(attention.numbers(y), reference(Q, K, V), atol=1e-6)
    before = y.bytes()
    binding.bind_output("Y", "cpu", 0, np.float32, (1, 1, 1, 1), y.address + 2)
    for key in "QKV":
        binding.bind_cpu_input(key, np.ones((1, 1, 1, 1), np.float32))
    with pytest.raises(Exception, match="Attention: Y must begin at a multiple of 4 bytes"):
        session.run_with_iobinding(binding)
    same(y, before)


@pytest.mark.parametrize("lengths", [None, (8, 5)], ids=["all", "lengths"])
@pytest.mark.parametrize("mask", ["visible", "lowest", "infinite", "added"])
def test_scores_are_capped_before_the_mask(mask, lengths):
    """The plugin does so in every version. ``convert`` writes a cap only on request, because ONNX Runtime's
    kernel does so in newer versions only."""
    q, k, v = (3 * random((2, 4, 3, 8), 1), random((2, 2, 8, 8), 2), random((2, 2, 8, 6), 3))
    visible = np.random.default_rng(4).random((2, 1, 3, 8)) < 0.6
    visible[..., 0] = True
    bias = {
        "visible": visible,
        "lowest": np.where(visible, 0, np.finfo(np.float32).min).astype(np.float32),
        "infinite": np.where(visible, 0, -np.inf).astype(np.float32),
        "added": random((2, 1, 3, 8), 5),
    }[mask]
    inputs = QKV | {"attn_mask": BOOL if mask == "visible" else FLOAT}
    feeds = {"Q": q, "K": k, "V": v, "attn_mask": bias}
    added = np.where(bias, 0.0, -np.inf) if mask == "visible" else bias.astype(np.float64)
    if lengths is not None:
        inputs |= {"nonpad_kv_seqlen": INT64}
        feeds["nonpad_kv_seqlen"] = np.array(lengths)
        added = np.where(np.arange(8) < np.array(lengths)[:, None, None, None], added, -np.inf)
    wide = [np.repeat(each, 2, axis=1).astype(np.float64) for each in (k, v)]
    scores = 1.5 * np.tanh(0.5 * q.astype(np.float64) @ wide[0].swapaxes(2, 3) / 1.5) + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ wide[1]
    capped = attention.model(inputs, ["Y"], 24, scale=0.5, softcap=1.5)
    for session, is_right in ((plugin(capped), True), (builtin(capped), CAPS_BEFORE_MASK)):
        difference = np.abs(session.run(None, feeds)[0] - expected).max()
        assert difference < 2e-6 if is_right else difference > 0.1, difference
