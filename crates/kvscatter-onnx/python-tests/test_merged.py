"""Tests that ``kvscatter convert`` takes the decoder with a past out of merged decoders.

One decoder was merged by Optimum. The others are merged here with the same structure: one ``If`` on the input
``use_cache_branch``.
"""

import json
import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support import runs
from support.command import TESTDATA, convert, kvscatter
from support.decoder import Growing, session
from support.runs import LENGTHS, SLOTS, Batch

DECODERS = [
    "optimum-llama",
    "decoders/optimum-1.18-gpt2",
    "decoders/optimum-1.18-opt",
    "decoders/optimum-0.1-qwen3-float16",
]


def branch(graph: onnx.GraphProto, name: str, has_past: bool) -> onnx.GraphProto:
    """Returns the nodes of a decoder. Without a past, the caches that it reads are empty."""
    nodes, outputs = [], {output.name for output in graph.output}
    made = {name for node in graph.node for name in node.output if name and name not in outputs}
    pasts = {value.name: value for value in graph.input if value.name.startswith("past_key_values.")}

    def renamed(value: str) -> str:
        if has_past:
            return value
        return f"empty.{value}" if value in pasts else f"{value}.{name}" if value in made else value

    if not has_past:
        nodes += [
            helper.make_node("Shape", ["input_ids"], ["ids.shape"]),
            helper.make_node("Constant", [], ["first"], value_ints=[0]),
            helper.make_node("Gather", ["ids.shape", "first"], ["batch.size"]),
        ]
        for past, value in pasts.items():
            _, heads, _, size = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
            zero = helper.make_tensor("", value.type.tensor_type.elem_type, [1], [0.0])
            nodes += [
                helper.make_node("Constant", [], [f"rest.{past}"], value_ints=[heads, 0, size]),
                helper.make_node("Concat", ["batch.size", f"rest.{past}"], [f"shape.{past}"], axis=0),
                helper.make_node("ConstantOfShape", [f"shape.{past}"], [f"empty.{past}"], value=zero),
            ]
    for node in graph.node:
        node = onnx.NodeProto.FromString(node.SerializeToString())
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
        nodes.append(node)
    return helper.make_graph(nodes, name, [], graph.output)


def merge(decoder: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    model = onnx.load(decoder)
    graph = model.graph
    choice = helper.make_node(
        "If",
        ["use_cache_branch"],
        [output.name for output in graph.output],
        name="optimum::if",
        then_branch=branch(graph, "with_past", has_past=True),
        else_branch=branch(graph, "no_past", has_past=False),
    )
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    del graph.node[:], graph.value_info[:]
    graph.node.append(choice)
    graph.input.append(flag)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


class Merged(Growing):
    """A merged decoder. The first step does not use the caches."""

    def feeds(self, ids, mask, positions, **more):
        has_past = next(iter(self.caches.values())).shape[2] > 0
        return super().feeds(ids, mask, positions, use_cache_branch=np.array([has_past]), **more)


@pytest.fixture(scope="module", params=DECODERS, ids=lambda name: pathlib.Path(name).name)
def merged(request, tmp_path_factory):
    """Returns a decoder, and a merged decoder that is made from it."""
    original = TESTDATA / request.param / "model.onnx"
    folder = tmp_path_factory.mktemp("merged")
    return original, merge(original, folder / "merged.onnx")


def test_the_merged_decoder_computes_what_its_branches_do(merged):
    original, path = merged
    expected, model = runs.references(original), Merged(path)
    for sample in expected:
        actual = runs.reference(model, sample.tokens)
        runs.close(actual.logits, sample.logits, "logits")


def computes_the_same(path: pathlib.Path, model: pathlib.Path) -> None:
    """Runs a merged decoder alone, and its conversion in a batch of three."""
    onnx.checker.check_model(model, full_check=True)
    names = {value.name for value in session(model).get_inputs()}
    assert "use_cache_branch" not in names
    streams = np.random.default_rng(6).integers(1, runs.VOCABULARY, (len(LENGTHS), SLOTS))
    batch = Batch(model, [runs.reference(Merged(path), stream) for stream in streams])
    batch.step(LENGTHS, unread=1)
    while (left := SLOTS - batch.read.max()) > 0:
        batch.step((min(2, left), 1, 0), unread=0)


def test_the_conversion_computes_what_the_merged_decoder_does(merged, tmp_path):
    computes_the_same(merged[1], convert(merged[1], tmp_path / "static.onnx", SLOTS))


def test_a_decoder_that_optimum_merged(tmp_path):
    path = TESTDATA / "decoders" / "optimum-1.18-gpt2-merged" / "model.onnx"
    computes_the_same(path, convert(path, tmp_path / "static.onnx", SLOTS))


def test_the_conversion_is_that_of_the_decoder(merged, tmp_path):
    original, path = merged
    models = [onnx.load(convert(each, tmp_path / each.name, SLOTS)) for each in (original, path)]
    for part in ("node", "input", "output"):
        assert [str(it) for it in getattr(models[0].graph, part)] == [
            str(it) for it in getattr(models[1].graph, part)
        ]


def test_inspect_describes_the_decoder(merged):
    expected, actual = (json.loads(kvscatter("inspect", path, "--json").stdout) for path in merged)
    assert actual.pop("merged") == {"input": "use_cache_branch", "value": True}
    assert actual | {"model": ""} == expected | {"model": ""}


def test_two_decoders_with_a_past_are_refused(merged, tmp_path):
    model = onnx.load(merged[1])
    choice = model.graph.node[0]
    then = next(each.g for each in choice.attribute if each.name == "then_branch")
    for each in choice.attribute:
        each.g.CopyFrom(then)
    onnx.save(model, tmp_path / "twice.onnx")
    arguments = ("convert", tmp_path / "twice.onnx", "-o", tmp_path / "out.onnx", "--max-seq", SLOTS)
    done = kvscatter(*arguments, exit_code=2)
    assert len(done.stderr.splitlines()) == 1
    assert "both branches" in done.stderr
    assert not (tmp_path / "out.onnx").exists()
