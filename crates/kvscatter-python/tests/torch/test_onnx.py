"""Tests exported models: their contents and validity, and that ONNX Runtime computes the same as PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import kvscatter
from kvscatter.torch import onnx as kvscatter_onnx
from kvscatter.torch import tensor_scatter, tensor_scatter_

OPS = torch.ops.kvscatter
# The exporter merges names of dimensions that must be equal, and warns about this.
pytestmark = pytest.mark.filterwarnings("ignore:# The axis name")

PAST, UPDATE = torch.randn(2, 3, 16, 4), torch.randn(2, 3, 5, 4)
STARTS = torch.tensor([1, 11])


class Functional(torch.nn.Module):
    def forward(self, past: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return tensor_scatter(past, update * 2, starts + 5, mode="circular") + 1


class InPlace(torch.nn.Module):
    def forward(self, cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        tensor_scatter_(cache, update * 2, starts, axis=2)
        return cache.sum(-1)


class Returned(torch.nn.Module):
    def forward(
        self, cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensor_scatter_(cache, update, starts)
        return update + 1, cache


class Views(torch.nn.Module):
    """Keys and values in one tensor, written one after the other."""

    def forward(self, both: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        tensor_scatter_(both[0], update, starts)
        tensor_scatter_(both[1], update + 1, starts + 5, mode="circular")
        return both.sum(-1)


class Buffered(torch.nn.Module):
    cache: torch.Tensor

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        self.register_buffer("untouched", torch.ones(4))
        self.layer = torch.nn.Module()
        self.layer.register_buffer("cache", PAST.clone(), persistent=persistent)

    def forward(self, update: torch.Tensor, *, starts: torch.Tensor) -> torch.Tensor:
        tensor_scatter_(self.layer.cache, self.project(update), starts)
        return self.layer.cache * self.untouched


def nodes(program: torch.onnx.ONNXProgram, op_type: str = "TensorScatter") -> list[onnx.NodeProto]:
    model = program.model_proto
    onnx.checker.check_model(model, full_check=True)
    assert [(it.domain, it.version) for it in model.opset_import] == [("", 24)]
    return [node for node in model.graph.node if node.op_type == op_type]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {"axis": found.get("axis", -2), "mode": found.get("mode", b"linear").decode()}


def run(program: torch.onnx.ONNXProgram, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the outputs by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of every write that is not in place
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    outputs = session.run(None, feeds)
    return {
        value.name: torch.from_numpy(output)
        for value, output in zip(session.get_outputs(), outputs, strict=True)
    }


def export(model: torch.nn.Module, args: Sequence[torch.Tensor], **options: Any) -> torch.onnx.ONNXProgram:
    return kvscatter_onnx.export(model.eval(), tuple(args), verbose=False, **options)


def test_functional() -> None:
    program = export(Functional(), (PAST, UPDATE, STARTS))
    (node,) = nodes(program)
    assert attributes(node) == {"axis": -2, "mode": "circular"}
    (got,) = run(program, PAST, UPDATE, STARTS).values()
    torch.testing.assert_close(got, Functional()(PAST, UPDATE, STARTS))


@pytest.mark.parametrize("optimize", [True, False])
def test_in_place(optimize: bool) -> None:
    program = export(InPlace(), (PAST, UPDATE, STARTS), optimize=optimize, output_names=["sums"])
    (node,) = nodes(program)
    assert attributes(node) == {"axis": 2, "mode": "linear"} and node.input[2] == "starts"
    got = run(program, PAST, UPDATE, STARTS)
    cache = PAST.clone()
    torch.testing.assert_close(got["sums"], InPlace()(cache, UPDATE, STARTS))
    torch.testing.assert_close(got["present_cache"], cache)
    if optimize:
        assert node.input[0] == "cache" and node.output[0] == "present_cache", "a runtime may write in place"


def test_int32_indices_are_cast() -> None:
    program = export(InPlace(), (PAST, UPDATE, STARTS.int()))
    (node,), (cast,) = nodes(program), nodes(program, "Cast")
    assert node.input[2] == cast.output[0]
    torch.testing.assert_close(
        run(program, PAST, UPDATE, STARTS.int())["present_cache"],
        OPS.tensor_scatter(PAST, UPDATE * 2, STARTS),
    )


def test_indices_may_be_left_out() -> None:
    class FromTheStart(torch.nn.Module):
        def forward(self, past: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
            return tensor_scatter(past, update)

    program = export(FromTheStart(), (PAST, UPDATE))
    assert len(nodes(program)[0].input) == 2
    (got,) = run(program, PAST, UPDATE).values()
    assert torch.equal(got, OPS.tensor_scatter(PAST, UPDATE))


def test_a_cache_that_the_model_returns_is_one_output() -> None:
    program = export(Returned(), (PAST, UPDATE, STARTS), input_names=["a", "b", "c"], output_names=["x", "y"])
    got = run(program, PAST, UPDATE, STARTS)
    assert list(got) == ["x", "y"] and torch.equal(got["y"], OPS.tensor_scatter(PAST, UPDATE, STARTS))


def test_views() -> None:
    both = torch.stack([PAST, PAST])
    program = export(Views(), (both, UPDATE, STARTS), input_names=["kv", "new", "at"], output_names=["sums"])
    assert [attributes(node)["mode"] for node in nodes(program)] == ["linear", "circular"]
    got = run(program, both, UPDATE, STARTS)
    torch.testing.assert_close(got["sums"], Views()(both, UPDATE, STARTS))
    assert torch.equal(got["present_kv"], both)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_becomes_an_input_and_an_output(persistent: bool) -> None:
    module = Buffered(persistent)
    program = export(
        module, (UPDATE,), kwargs={"starts": STARTS}, dynamic_shapes={"update": {2: "rows"}, "starts": None}
    )
    assert len(nodes(program)) == 1
    inputs = {value.name: list(value.shape) for value in program.model.graph.inputs}
    assert [str(size) for size in inputs["update"]] == ["2", "3", "rows", "4"]
    assert list(inputs) == ["update", "starts", "layer_cache"]
    update = torch.randn(2, 3, 2, 4)
    got = run(program, update, STARTS, PAST)
    with torch.no_grad():
        want = module(update, starts=STARTS)
    assert len(got) == 2
    torch.testing.assert_close(next(iter(got.values())), want)
    torch.testing.assert_close(got["present_layer_cache"], module.layer.cache)


def test_a_buffer_that_is_returned_and_has_an_input_of_its_name() -> None:
    class Named(torch.nn.Module):
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", PAST.clone())

        def forward(self, update: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
            tensor_scatter_(self.cache, update, cache)
            return self.cache

    shapes = {"update": {2: "rows"}, "cache": None}
    program = export(Named(), (UPDATE, STARTS), dynamic_shapes=shapes, output_names=["written"])
    assert len(nodes(program)) == 1
    assert [value.name for value in program.model.graph.inputs] == ["update", "cache", "cache_"]
    assert [str(size) for size in program.model.graph.inputs[0].shape] == ["2", "3", "rows", "4"]
    got = run(program, UPDATE, STARTS, PAST)
    assert list(got) == ["written"] and torch.equal(got["written"], OPS.tensor_scatter(PAST, UPDATE, STARTS))


def test_dynamic_dimensions() -> None:
    shapes = ({0: "batch", 2: "capacity"}, {0: "batch", 2: "rows"}, {0: "batch"})
    program = export(InPlace(), (PAST, UPDATE, STARTS), dynamic_shapes=shapes)
    cache, update, starts = torch.zeros(3, 3, 9, 4), torch.randn(3, 3, 2, 4), torch.tensor([0, 7, 3])
    got = run(program, cache, update, starts)
    want = OPS.tensor_scatter(cache, update * 2, starts)
    torch.testing.assert_close(got["present_cache"], want)
    assert [str(size) for size in program.model.graph.inputs[0].shape] == ["batch", "3", "capacity", "4"]


def test_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    options: dict[str, Any] = {"verbose": False, "external_data": False}
    arguments = (UPDATE,), path
    kvscatter_onnx.export(
        Buffered(True).eval(), *arguments, kwargs={"starts": STARTS}, verify=True, **options
    )
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node].count("TensorScatter") == 1
    assert {value.name for value in model.graph.initializer} & {
        value.name for value in model.graph.input
    } == set()
    options["keep_initializers_as_inputs"] = True
    kvscatter_onnx.export(Buffered(True).eval(), *arguments, kwargs={"starts": STARTS}, **options)
    model = onnx.load(path)
    assert {value.name for value in model.graph.initializer} <= {value.name for value in model.graph.input}


# ── functionalize and translations ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("decomposed", [False, True])
def test_the_pieces_with_torch_onnx_export(decomposed: bool) -> None:
    exported = torch.export.export(Returned(), (PAST, UPDATE, STARTS))
    if decomposed:
        exported = exported.run_decompositions()
        assert exported.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.auto_functionalized_v2
        )
    functional = kvscatter_onnx.functionalize(exported)
    targets = [node.target for node in functional.graph.nodes if node.op == "call_function"]
    assert targets.count(OPS.tensor_scatter.default) == 1 and OPS.tensor_scatter_.default not in targets
    cache = PAST.clone()
    functional.module()(cache, UPDATE, STARTS)
    assert torch.equal(cache, OPS.tensor_scatter(PAST, UPDATE, STARTS)), "the program still writes its input"
    program = torch.onnx.export(
        functional,
        opset_version=24,
        custom_translation_table=kvscatter_onnx.translations(),
        output_names=["next", "kept"],
        verbose=False,
    )
    assert program is not None and len(nodes(program)) == 1
    assert torch.equal(run(program, PAST, UPDATE, STARTS)["kept"], cache)


def test_the_exporter_alone_does_not_know_the_operators(tmp_path: Path) -> None:
    """As documented, it raises an error, or with ``dynamo=False`` it exports a model that writes nothing."""
    arguments = torch.zeros(2, 3, 16, 4), UPDATE, STARTS
    with pytest.raises(torch.onnx.OnnxExporterError) as caught:
        torch.onnx.export(Returned().eval(), arguments, opset_version=24, dynamo=True, verbose=False)
    assert type(caught.value).__name__ == "ConversionError"
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(Returned().eval(), arguments, path, dynamo=False)
    assert "TensorScatter" not in {node.op_type for node in onnx.load(path).graph.node}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    results = session.run(None, {names[0]: np.zeros((2, 3, 16, 4), np.float32), names[1]: UPDATE.numpy()})
    assert len(names) == 2 and not results[1].any()


def test_functionalize_leaves_the_program_as_it_was() -> None:
    exported = torch.export.export(Returned(), (PAST, UPDATE, STARTS))
    before = str(exported.graph)
    kvscatter_onnx.functionalize(exported)
    assert str(exported.graph) == before


def test_a_decomposed_write_into_a_view_is_refused() -> None:
    exported = torch.export.export(Views(), (torch.stack([PAST, PAST]), UPDATE, STARTS)).run_decompositions()
    with pytest.raises(kvscatter.OptionError, match="call functionalize before run_decompositions"):
        kvscatter_onnx.functionalize(exported)


def test_lengths_have_no_word_in_onnx() -> None:
    class Ragged(torch.nn.Module):
        def forward(self, past: torch.Tensor, update: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return tensor_scatter(past, update, lengths=lengths)

    arguments = PAST, UPDATE, torch.tensor([5, 2])
    with pytest.raises(kvscatter.OptionError, match="lengths cannot be exported"):
        export(Ragged(), arguments)
    table = kvscatter_onnx.translations()
    with pytest.raises(torch.onnx.OnnxExporterError, match="lengths cannot be exported"):
        torch.onnx.export(
            Ragged().eval(), arguments, opset_version=24, custom_translation_table=table, verbose=False
        )


def test_skipping_has_no_word_in_onnx() -> None:
    class Skipping(torch.nn.Module):
        def forward(self, past: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
            return tensor_scatter(past, update, out_of_range="skip")[0]

    with pytest.raises(kvscatter.OptionError, match='out_of_range = "skip" cannot be exported'):
        export(Skipping(), (PAST, UPDATE))


def test_opsets_without_the_operator_are_refused() -> None:
    with pytest.raises(kvscatter.OptionError, match="begins with opset 24"):
        export(InPlace(), (PAST, UPDATE, STARTS), opset_version=23)
