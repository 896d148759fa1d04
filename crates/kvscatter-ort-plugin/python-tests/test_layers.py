"""The nodes of a layer between its projections are one node, which computes the same."""

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from support import heap, models
from support.layers import BATCH, BY_HEAD, KV_HEADS, LAYERS, SIZE, SLOTS, feed, layer, run
from support.sessions import PROVIDER, add_provider, assignment, options, plugin

KERNELS = ["Attention", "TensorScatter", "TensorScatter"]


@pytest.mark.parametrize(
    ("code", "dtype", "unit"), [(TensorProto.FLOAT, "f4", 1e-6), (TensorProto.FLOAT16, "f2", 2e-3)]
)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_its_nodes_compute(name, code, dtype, unit):
    model = layer(code, **LAYERS[name])
    one, several = plugin(model, 2, fusion="on"), plugin(model, 2)
    # One session has all shapes, so a call must not use what was prepared for another.
    for tokens, in_place in itertools.product((1, 3, 1), (True, False)):
        inputs = feed(one, tokens, dtype)
        got, expected = (run(session, inputs, in_place) for session in (one, several))
        for output, values in expected.items():
            np.testing.assert_allclose(got[output], values, rtol=unit, atol=unit, err_msg=output)
        # Values are moved and not computed, so each bit is the same.
        assert got["present_v"].tobytes() == expected["present_v"].tobytes()


@pytest.mark.parametrize("name", LAYERS)
def test_all_nodes_of_a_layer_are_ours(name):
    chosen = LAYERS[name]
    taken = assignment(plugin(layer(**chosen), fusion="on"))
    by_head, rotates = chosen.get("by_head", False), "rotation" in chosen
    expected = KERNELS + 2 * rotates * ["RotaryEmbedding"]
    expected += [] if by_head else ["Reshape", *4 * ["Transpose"]]
    expected += ["Reshape", "Split"] if chosen.get("packed") else []
    assert sorted(taken.pop(PROVIDER)) == sorted(expected)
    assert taken == {}


@pytest.mark.parametrize(
    ("extra", "chosen"), [((), {}), ((), {"attention": "off"}), (["k_rotated"], {}), (["q"], {})]
)
def test_nodes_that_must_stay_are_not_taken(extra, chosen):
    """A value that the program reads is computed, and so are those of a session without the attention."""
    model = layer(packed=True, rotation={}, extra=extra)
    # ONNX Runtime's own Attention is wrong in some versions, so both sessions use the same one.
    session, several = plugin(model, fusion="on", **chosen), plugin(model, **chosen)
    taken = assignment(session)[PROVIDER]
    for operator, count in {"k_rotated": [("RotaryEmbedding", 1)], "q": [("Split", 0)]}.get(
        "".join(extra), []
    ):
        assert taken.count(operator) == count
    if chosen:
        assert set(taken) <= {"Attention", "TensorScatter"}
    inputs = feed(session, 3)
    got, expected = (run(made, inputs, True) for made in (session, several))
    for output, values in expected.items():
        np.testing.assert_allclose(got[output], values, rtol=1e-6, atol=1e-5, err_msg=output)


@pytest.mark.parametrize(
    ("entries", "chosen"),
    [
        ({}, {}),
        ({"session.disable_model_compile": "1"}, {"fusion": "on"}),
        ({"ep.context_enable": "1", "ep.context_file_path": "context.onnx"}, {"fusion": "on"}),
    ],
    ids=["not chosen", "no compilation", "contexts"],
)
def test_nodes_are_not_fused_in_sessions_that_refuse_compiled_nodes(entries, chosen, tmp_path):
    entries = {
        key: value.replace("context.onnx", str(tmp_path / "context.onnx")) for key, value in entries.items()
    }
    session = plugin(layer(rotation={}), entries=entries, **chosen)
    assert sorted(assignment(session)[PROVIDER]) == KERNELS
    run(session, feed(session, 1), True)


@pytest.mark.parametrize("name", ["optimized.onnx", "optimized.ort"])
def test_a_session_that_does_not_choose_fusion_can_be_saved(name, tmp_path):
    made = options()
    add_provider(made)
    made.optimized_model_filepath = str(tmp_path / name)
    inputs, results = None, []
    model = layer(rotation={})
    for source in (model, made.optimized_model_filepath):
        session = ort.InferenceSession(
            source, made if source is model else without_saving(), enable_fallback=0
        )
        inputs = inputs or feed(session, 1)
        results.append(run(session, inputs, False))
    for output, values in results[0].items():
        np.testing.assert_array_equal(results[1][output], values, err_msg=output)


def without_saving() -> ort.SessionOptions:
    made = options()
    add_provider(made)
    return made


def chain() -> bytes:
    """Returns two layers without projections. The ``Transpose`` between them could belong to either."""
    cache = [BATCH, KV_HEADS, SLOTS, SIZE]
    floats, nodes = {"q": [BATCH, 4, 2, SIZE]}, []
    for number, query in enumerate(["q", "q_1"]):
        tokens = 2 if number == 0 else 4
        for name in ("k", "v"):
            past, update = f"past_{name}{number}", f"{name}{number}"
            floats |= {past: cache, update: [BATCH, KV_HEADS, tokens, SIZE]}
            nodes.append(
                helper.make_node("TensorScatter", [past, update, "starts"], [f"present_{name}{number}"])
            )
        read = [query, f"present_k{number}", f"present_v{number}", "", "", "", "lengths"]
        nodes.append(helper.make_node("Attention", read, [f"Y{number}"]))
    nodes.insert(3, helper.make_node("Transpose", ["Y0"], ["q_1"], perm=BY_HEAD))
    values = [models.value(name, TensorProto.FLOAT, shape) for name, shape in floats.items()]
    values += [models.value(name, TensorProto.INT64, [BATCH]) for name in ("starts", "lengths")]
    presents = [f"present_{name}{number}" for number in (0, 1) for name in ("k", "v")]
    return models.model(nodes, values, [models.value(name, TensorProto.FLOAT) for name in ("Y1", *presents)])


def test_a_node_between_two_layers_belongs_to_one_of_them():
    one, several = plugin(chain(), fusion="on"), plugin(chain())
    assert sorted(assignment(one)[PROVIDER]) == sorted([*KERNELS, *KERNELS, "Transpose"])
    random = np.random.default_rng(24)
    inputs = {value.name: random.standard_normal(value.shape).astype("f4") for value in one.get_inputs()}
    inputs |= {"starts": np.array([5, 2]), "lengths": np.array([9, 6])}
    got, expected = (session.run(None, inputs) for session in (one, several))
    for values, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-6)


def test_a_cache_that_is_also_another_input_is_not_fused():
    """A write in place would change the other input too early."""
    model = layer(rotation={}, past_v="past_k")
    session = plugin(model, fusion="on")
    assert sorted(assignment(session)[PROVIDER]) == KERNELS
    inputs = feed(session, 1)
    got, expected = (run(made, inputs, False) for made in (session, plugin(model)))
    for output, values in expected.items():
        assert got[output].tobytes() == values.tobytes()


@pytest.mark.parametrize("names", [(b"co\0q", b"co\0s"), ("余弦".encode("gbk"), "正弦".encode("gbk"))])
def test_layers_of_a_graph_with_indistinct_names_are_not_fused(names):
    """ONNX Runtime accepts any bytes as a name, but a provider gets C strings."""
    model = layer(rotation={}, angles=("CCCC", "SSSS"))
    for placeholder, name in zip((b"CCCC", b"SSSS"), names, strict=True):
        model = model.replace(placeholder, name)
    assert sorted(assignment(plugin(model, fusion="on"))[PROVIDER]) == KERNELS


def test_runs_at_the_same_time_do_not_share_working_memory():
    session = plugin(layer(packed=True, rotation={}), fusion="on")
    inputs = [feed(session, 1 + seed % 4, seed=seed) for seed in range(16)]
    expected = [run(session, values, True) for values in inputs]

    def repeat(thread: int) -> None:
        for step in range(40):
            number = (thread + step) % len(inputs)
            for name, values in run(session, inputs[number], True).items():
                assert values.tobytes() == expected[number][name].tobytes(), name

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(repeat, thread) for thread in range(16)]:
            future.result()


def test_a_session_keeps_the_working_memory_of_one_call():
    """Calls with other numbers of tokens use the same memory."""
    session = plugin(layer(packed=True, slots=2048), fusion="on")
    used = []
    for tokens in range(1000, 1008):
        run(session, feed(session, tokens), True)
        gc.collect()
        used.append(heap.used())
    # The queries, keys, values and results of a call are 768 kB. What is prepared for a shape is less.
    assert used[-1] - used[0] < 7 * 400_000, np.diff(used)
