"""Apache TVM: the ONNX front end of Relax, compiled for LLVM."""

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]


def name():
    return "Apache TVM"


def version():
    return tvm.__version__


def run(case, in_place):
    if in_place:
        raise NotPossible("the machine returns new arrays")
    module = from_onnx(onnx.load(case.model), keep_params_in_input=False)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    made = machine["main"](
        *(tvm.runtime.tensor(np.ascontiguousarray(values)) for values in case.inputs.values())
    )
    return [output.numpy() for output in (made if len(case.outputs) > 1 else [made])]
