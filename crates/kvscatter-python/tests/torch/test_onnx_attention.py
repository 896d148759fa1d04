"""Tests exported reads in ONNX Runtime and in onnx's reference implementation."""

from __future__ import annotations

from typing import Any

import attention_oracle
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from kvscatter.torch import attention, tensor_scatter_
from kvscatter.torch import onnx as kvscatter_onnx

OPS = torch.ops.kvscatter
# The exporter merges names of dimensions that must be equal, and warns about this.
pytestmark = pytest.mark.filterwarnings("ignore:# The axis name")


class Read(torch.nn.Module):
    """A read whose other arguments are constants."""

    def __init__(self, case: attention_oracle.Case) -> None:
        super().__init__()
        names = [argument.name for argument in OPS.attention.default._schema.arguments[4:]]
        self.all: list[Any] = [case.q, case.k, case.v, case.lengths, *(case.options.get(it) for it in names)]
        # Both runtimes multiply hidden values by 0, so they need other numbers there than NaN.
        self.all = [it.nan_to_num() if isinstance(it, torch.Tensor) else it for it in self.all]
        self.places = [place for place, it in enumerate(self.all) if isinstance(it, torch.Tensor)]
        self.inputs = tuple(self.all[place] for place in self.places)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        arguments = list(self.all)
        for place, tensor in zip(self.places, given, strict=True):
            arguments[place] = tensor
        output: torch.Tensor = OPS.attention(*arguments)
        return output


def results(program: torch.onnx.ONNXProgram, *inputs: torch.Tensor) -> list[list[np.ndarray[Any, Any]]]:
    """Returns the outputs of both runtimes."""
    model = program.model_proto
    onnx.checker.check_model(model, full_check=True)
    assert [(it.domain, it.version) for it in model.opset_import] == [("", 24)]
    feeds = {value.name: tensor.numpy() for value, tensor in zip(model.graph.input, inputs, strict=True)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [session.run(None, feeds), ReferenceEvaluator(model).run(None, feeds)]


def test_random_calls() -> None:
    exported = 0
    for seed in range(3000, 3050):
        case = attention_oracle.case(seed)
        types = {case.q.dtype, case.k.dtype}
        # NumPy has no bfloat16, and ONNX Runtime has no kernel of float64 and refuses a scale of 0.
        if types & {torch.bfloat16, torch.float64} or case.options["scale"] == 0.0:
            continue
        mask = case.options["mask"]
        # If every slot of a query has the lowest number, ONNX Runtime gives zeros.
        if mask is not None and mask.is_floating_point() and (mask == torch.finfo(mask.dtype).min).any():
            continue
        read = Read(case)
        program = kvscatter_onnx.export(read, read.inputs, verbose=False)
        assert [node.op_type for node in program.model_proto.graph.node].count("Attention") == 1
        want = read(*read.inputs)
        tolerance = 4e-3 if case.q.dtype is torch.float16 else 1e-5
        for (got,) in results(program, *(it.contiguous() for it in read.inputs)):
            torch.testing.assert_close(torch.from_numpy(got), want, rtol=tolerance, atol=tolerance)
        exported += 1
    assert exported > 8


class Decoder(torch.nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor, past: torch.Tensor
    ) -> torch.Tensor:
        tensor_scatter_(k, new, past)
        tensor_scatter_(v, new * 2, past)
        return attention(q, k, v, past + new.shape[2])


def test_a_step_writes_and_reads() -> None:
    given = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 8)
    given = *given, torch.randn(2, 2, 3, 8), torch.tensor([0, 13])
    batch, rows, slots = "batch", "rows", "slots"
    shapes = (
        {0: batch, 2: rows},
        {0: batch, 2: slots},
        {0: batch, 2: slots},
        {0: batch, 2: rows},
        {0: batch},
    )
    program = kvscatter_onnx.export(Decoder(), given, dynamic_shapes=shapes, verbose=False)
    types = [node.op_type for node in program.model_proto.graph.node]
    assert types.count("TensorScatter") == 2 and types.count("Attention") == 1
    assert set(types) <= {"TensorScatter", "Attention", "Mul", "Add", "Shape", "Squeeze", "Gather"}
    other = torch.randn(3, 4, 1, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 8)
    for call in (given, (*other, torch.randn(3, 2, 1, 8), torch.tensor([8, 0, 4]))):
        for first, *_ in results(program, *call):
            torch.testing.assert_close(
                torch.from_numpy(first), Decoder()(*(it.clone() for it in call)), rtol=1e-5, atol=1e-5
            )


def test_attributes() -> None:
    q, cache, lengths = torch.randn(1, 2, 1, 4), torch.randn(1, 1, 8, 4), torch.tensor([5])

    class Plain(torch.nn.Module):
        def forward(self, q: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return attention(q, cache, cache, lengths, scale=0.5, softcap=2.0)

    program = kvscatter_onnx.export(Plain(), (q, cache, lengths), verbose=False)
    (node,) = program.model_proto.graph.node
    assert list(node.input) == ["q", "cache", "cache", "", "", "", "lengths"]
    found = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
    assert found == {"is_causal": 1, "scale": 0.5, "softcap": 2.0, "qk_matmul_output_mode": 0}
