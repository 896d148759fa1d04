"""The reference evaluator of onnx, after its checker."""

import onnx
from onnx.reference import ReferenceEvaluator

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]


def name():
    return "onnx reference"


def version():
    return onnx.__version__


def run(case, in_place):
    if in_place:
        raise NotPossible("ReferenceEvaluator.run allocates its outputs")
    onnx.checker.check_model(str(case.model), full_check=True)
    return ReferenceEvaluator(str(case.model)).run(None, case.inputs)
