"""Tests that ``kvscatter convert`` preserves the results, for any contents of the cache and any order."""

import itertools
import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support import runs
from support.command import TESTDATA, convert
from support.runs import LENGTHS, SLOTS, Batch

ORDERS = list(itertools.permutations(range(len(LENGTHS))))
FUTURE = pytest.mark.parametrize("unread", [0, 1], ids=["unread-masked", "unread-not-masked"])


def test_the_checker_accepts_it_and_shapes_are_inferred(converted):
    onnx.checker.check_model(converted.model, full_check=True)
    model = onnx.load(converted.model)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 24
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def dimensions(value: onnx.ValueInfoProto) -> list[int | str]:
    return [each.dim_value or each.dim_param for each in value.type.tensor_type.shape.dim]


def test_caches_are_static_and_no_shape_depends_on_the_step(converted):
    before, after = onnx.load(converted.original), onnx.load(converted.model)
    values = {value.name: value for value in [*after.graph.input, *after.graph.output]}
    for value in [*before.graph.input, *before.graph.output]:
        if value.name.startswith(("past_key_values.", "present.")):
            batch, heads, _, size = dimensions(value)
            # GroupQueryAttention's exporter leaves the head size open, and the conversion declares it.
            known = dimensions(values[value.name])
            assert known[1:] == [heads, SLOTS, size if isinstance(size, int) else known[3]]
            assert isinstance(known[3], int)
            assert isinstance(batch, str)
    assert dimensions(values["attention_mask"])[1] == SLOTS
    scatters = [node for node in after.graph.node if node.op_type == "TensorScatter"]
    assert len(scatters) == 4
    assert {node.input[2] for node in scatters} == {"write_indices"}
    assert len(dimensions(values["write_indices"])) == 1
    steps = {"batch", "tokens"}  # the sizes that a step may choose; no symbol names a length of the past
    for value in after.graph.input:
        free = [each for each in dimensions(value) if isinstance(each, str)]
        assert len(free) <= len(steps), f"{value.name} {dimensions(value)}"


def test_one_attention_reads_each_cache_as_it_lies(converted):
    nodes = onnx.load(converted.model).graph.node
    presents = [node.output[0] for node in nodes if node.op_type == "TensorScatter"]
    for present in presents:
        assert [node.op_type for node in nodes if present in node.input] == ["Attention"]
    attentions = [node for node in nodes if node.op_type == "Attention"]
    assert [len(node.input) for node in attentions] == [7, 7]
    assert {node.input[6] for node in attentions} == {"nonpad_kv_seqlen"}


def test_metadata_says_what_the_inputs_are(converted):
    entries = {entry.key: entry.value for entry in onnx.load(converted.model).metadata_props}
    ours = " ".join(f"{key} {value}" for key, value in entries.items() if "kvscatter" in key)
    assert "write_indices" in ours
    assert str(SLOTS) in ours


@FUTURE
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(str(LENGTHS[each]) for each in order))
def test_prompts_of_mixed_lengths_then_decode_to_the_last_slot(converted, order, unread):
    batch = Batch(converted.model, [converted.references[each] for each in order])
    batch.step(tuple(LENGTHS[each] for each in order), unread)
    while batch.read.max() < SLOTS:
        batch.step((1, 1, 1), unread)
    assert batch.read.max() == SLOTS
    assert len(set(batch.read)) == len(LENGTHS)


@FUTURE
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(str(LENGTHS[each]) for each in order))
def test_prompts_in_chunks_and_chunks_in_mid_cache(converted, order, unread):
    """Feeds padding to a sample whose prompt has ended, then two and three tokens at different starts."""
    batch = Batch(converted.model, [converted.references[each] for each in order])
    lengths = np.array([LENGTHS[each] for each in order])
    while (batch.read < lengths).any():
        batch.step(tuple(np.minimum(3, lengths - batch.read).tolist()), unread)
    for count in (2, 3, 2):
        batch.step((count, count, count), unread)
    assert batch.read.max() == SLOTS


@FUTURE
def test_left_padded_prompts_share_one_write_index(converted, unread):
    runs.left_padded(converted.original, converted.model, converted.references, unread)


def with_window(path, window, counted):
    """Writes a decoder whose causal mask has a window of slots or of real tokens."""
    model = onnx.load(TESTDATA / "mobius-llama-dynamic" / "model.onnx")
    attentions = [node for node in model.graph.node if node.op_type == "Attention"]
    exported = attentions[0].input[3]
    for node in attentions:
        node.input[3] = "windowed"
    constants = {"axis": np.array(1), "size": np.array(window)}
    constants |= {name: np.array([value]) for name, value in [("one", 1), ("two", 2), ("end", 2**62)]}
    constants = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    model.graph.initializer.extend(constants)
    nodes = [
        helper.make_node("Equal", ["attention_mask", "attention_mask"], ["all"]),
        helper.make_node("Cast", ["all"], ["slots"], to=onnx.TensorProto.INT64),
        helper.make_node(
            "CumSum", ["attention_mask" if counted == "tokens" else "slots", "axis"], ["counts"]
        ),
        helper.make_node("Shape", ["input_ids"], ["new"], start=1),
        helper.make_node("Neg", ["new"], ["first"]),
        helper.make_node("Slice", ["counts", "first", "end", "one"], ["own"]),
        helper.make_node("Unsqueeze", ["own", "two"], ["rows"]),
        helper.make_node("Unsqueeze", ["counts", "one"], ["columns"]),
        helper.make_node("Sub", ["rows", "columns"], ["distance"]),
        helper.make_node("Less", ["distance", "size"], ["near"]),
        helper.make_node("Unsqueeze", ["near", "one"], ["near_by_head"]),
        helper.make_node("And", [exported, "near_by_head"], ["windowed"]),
    ]
    first = list(model.graph.node).index(attentions[0])
    for offset, node in enumerate(nodes):
        model.graph.node.insert(first + offset, node)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("counted", ["slots", "tokens"])
@pytest.mark.parametrize("window", [2, 5, 12])
def test_padding_between_tokens_counts_in_a_window_as_exported(window, counted, tmp_path):
    original = with_window(tmp_path / "original.onnx", window, counted)
    static = convert(original, tmp_path / "static.onnx", SLOTS)
    runs.padded_between(original, static, runs.references(original))


def test_one_sample_alone(converted):
    batch = Batch(converted.model, converted.references[:1])
    batch.step((SLOTS - 1,), 0)
    batch.step((1,), 0)


def test_nothing_of_what_lies_in_the_cache_is_seen(converted):
    """Caches of zeros and caches of canaries give the same bits."""
    logits = []
    for paint in (runs.canaries, lambda index, shape: np.zeros(1)):
        batch = Batch(converted.model, converted.references, paint)
        ids = np.stack([each.tokens[:5] for each in converted.references])
        positions = np.broadcast_to(np.arange(5), ids.shape).copy()
        mask = np.ones((len(ids), SLOTS), np.int64)
        logits.append(batch.decoder.step(ids, mask, positions, np.zeros(len(ids), np.int64)))
    assert logits[0].tobytes() == logits[1].tobytes()


def test_weights_beside_the_model_are_copied_and_not_changed(tmp_path):
    original = TESTDATA / "mobius-llama-dynamic" / "model.onnx"
    before = original.with_name("model.onnx.data").read_bytes()
    convert(original, tmp_path / "model.onnx", SLOTS)
    data = [path for path in tmp_path.iterdir() if path.name != "model.onnx"]
    assert [path.read_bytes() for path in data] == [before]
    assert original.with_name("model.onnx.data").read_bytes() == before
    assert os.path.getsize(tmp_path / "model.onnx") < 100_000


def test_weights_inside_the_model_stay_as_they_are(converted):
    def tensors(path):
        model = onnx.load(path)
        return {each.name: onnx.numpy_helper.to_array(each).tobytes() for each in model.graph.initializer}

    before, after = tensors(converted.original), tensors(converted.model)
    large = {name for name, data in before.items() if len(data) >= 512}
    assert large
    for name in large:
        assert after[name] == before[name], name
