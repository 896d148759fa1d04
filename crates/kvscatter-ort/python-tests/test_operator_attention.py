"""Attention computes what the oracle computes, for every kind of case, type and output."""

import pytest

from support import attention
from support.attention import OUTPUTS
from support.sessions import HAS_WINDOWS, PROVIDER, assignment, plugin, run
from support.tensors import Tensor, same


@pytest.fixture(scope="module")
def cases(attention_cases):
    """Returns the cases that this version of ONNX Runtime can load."""
    return [case for case in attention.cases(attention_cases) if case.opset < 25 or HAS_WINDOWS]


def outputs_of(case) -> list[list[str]]:
    """Returns the sets of outputs to request. A node with lengths has no presents in the specification."""
    return [["Y"], ["Y", "qk_matmul_output"], *[OUTPUTS[:3], OUTPUTS][: 2 * ("nonpad_kv_seqlen" not in case.inputs)]]


@pytest.mark.parametrize("shaped", [False, True], ids=["open shapes", "declared shapes"])
def test_outputs_are_those_of_the_oracle(cases, shaped):
    checked = 0
    for case in cases:
        if case.refusal:
            continue
        names = outputs_of(case)[checked % len(outputs_of(case))]
        session = plugin(case.model(names, shaped), threads=1 + checked % 2)
        assert assignment(session) == {PROVIDER: ["Attention"]}, case.name
        inputs, outputs = case.tensors(), case.outputs(names)
        before = {name: tensor.bytes() for name, tensor in inputs.items()}
        run(session, inputs, outputs)
        for name, got in outputs.items():
            case.check(name, got)
        for name, tensor in inputs.items():
            same(tensor, before[name])
        checked += 1
    assert checked > 150


def test_broken_calls_are_left_to_others_or_refused(cases):
    """A call that breaks a rule gives an error and writes nothing, or another provider has the node."""
    refused, left = 0, 0
    for case in cases:
        if not case.refusal:
            continue
        tensors = case.tensors()
        y = Tensor.garbage(case.element, tensors["Q"].shape[:-1] + tensors["V"].shape[-1:])
        before = y.bytes()
        try:
            session = plugin(case.model(["Y"]))
        except Exception:
            left += 1  # the runtime's own check or its CPU kernel refuses the model
            continue
        if assignment(session) != {PROVIDER: ["Attention"]}:
            left += 1
            continue
        with pytest.raises(Exception, match="Attention: |INVALID_ARGUMENT"):
            run(session, tensors, {"Y": y})
        same(y, before)
        refused += 1
    assert refused >= 8 and left >= 5, (refused, left)
