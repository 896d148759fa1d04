"""tract as it is, with its package for Python."""

import numpy as np
import tract

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]


def name():
    return "tract"


def version():
    return tract.version()


def run(case, in_place):
    if in_place:
        raise NotPossible("the package copies every input")
    model = tract.onnx().load(str(case.model)).into_model().into_runnable()
    outputs = model.run([np.ascontiguousarray(values) for values in case.inputs.values()])
    return [output.to_numpy() for output in outputs]
