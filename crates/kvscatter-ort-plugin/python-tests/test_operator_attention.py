"""Attention computes what the oracle computes, for every kind of case, type and output."""

import numpy as np
import pytest

from support import attention
from support.attention import OUTPUTS
from support.sessions import HAS_WINDOWS, PROVIDER, VERSION, assignment, builtin, plugin, run
from support.tensors import Tensor, same


@pytest.fixture(scope="module")
def cases(attention_cases):
    """Returns the cases that this version of ONNX Runtime can load."""
    return [case for case in attention.cases(attention_cases) if case.opset < 25 or HAS_WINDOWS]


def outputs_of(case) -> list[list[str]]:
    """Returns the sets of outputs to request. A node with lengths has no presents in the specification. With a
    past but without presents, ONNX infers a wrong shape of the fourth output, which the runtime then refuses."""
    if "past_key" in case.inputs:
        return [["Y"], OUTPUTS[:3], OUTPUTS]
    only_one = [["Y"], ["Y", "qk_matmul_output"]]
    return only_one if "nonpad_kv_seqlen" in case.inputs else [*only_one, OUTPUTS[:3], OUTPUTS]


def check(case, n, shaped):
    """Runs a case that breaks no rule. ``n`` chooses the outputs and the number of threads."""
    names = outputs_of(case)[n % len(outputs_of(case))]
    session = plugin(case.model(names, shaped), threads=1 + n % 2)
    assert assignment(session) == {PROVIDER: ["Attention"]}, case.name
    inputs, outputs = case.tensors(), case.outputs(names)
    before = {name: tensor.bytes() for name, tensor in inputs.items()}
    run(session, inputs, outputs)
    for name, got in outputs.items():
        case.check(name, got)
    for name, tensor in inputs.items():
        same(tensor, before[name])


@pytest.mark.parametrize("shaped", [False, True], ids=["open shapes", "declared shapes"])
def test_outputs_are_those_of_the_oracle(cases, shaped):
    valid = [case for case in cases if not case.refusal]
    for n, case in enumerate(valid):
        check(case, n, shaped)
    assert len(valid) > 150


@pytest.mark.skipif(VERSION < (1, 31), reason="earlier versions place causal masks differently")
def test_the_built_in_kernel_agrees(cases):
    """Where both are defined, the built-in kernel gives the same numbers as the plugin."""
    checked = 0
    for case in cases:
        theme = case.name.partition("_attention_")[2]
        # A NaN in a hidden slot makes the rows of the built-in kernel NaN.
        is_finite = all(np.isfinite(values.astype(np.float64)).all() for values in case.inputs.values())
        if case.refusal or case.element.name != "float" or theme not in AGREED or not is_finite:
            continue
        outputs = [run_in(make, case) for make in (plugin, builtin)]
        np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5, err_msg=case.name)
        checked += 1
    assert checked >= 8


# The built-in kernel refuses some shapes of masks, and differs where masks hide whole rows.
AGREED = [
    "plain",
    "causal_square",
    "wide_heads",
    "decode",
    "past",
    "past_causal",
    "past_empty",
    "lengths_full",
]


def run_in(make, case):
    # The built-in kernel needs both presents for a past.
    names = OUTPUTS[:3] if "past_key" in case.inputs else ["Y"]
    outputs = case.outputs(names)
    run(make(case.model(names)), case.tensors(), outputs)
    return attention.numbers(outputs["Y"])


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
