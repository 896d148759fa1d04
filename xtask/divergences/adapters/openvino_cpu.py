"""OpenVINO on the CPU, from the ONNX file."""

import ml_dtypes
import numpy as np
import openvino as ov

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]
CORE = ov.Core()


def name():
    return "OpenVINO"


def version():
    return ov.__version__.split("-")[0]


def run(case, in_place):
    if in_place:
        raise NotPossible("the model has no state that a run could write")
    # Results must not depend on the precision that the plugin would choose.
    model = CORE.compile_model(CORE.read_model(str(case.model)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = model.create_infer_request()
    for number, values in enumerate(case.inputs.values()):
        request.set_input_tensor(number, tensor(values))
    request.infer()
    return [array(request.get_output_tensor(number)) for number in range(len(case.outputs))]


def tensor(values):
    if values.dtype == ml_dtypes.bfloat16:
        return ov.Tensor(values.view(np.uint16), ov.Shape(values.shape), ov.Type.bf16)
    return ov.Tensor(values)


def array(output):
    if output.element_type == ov.Type.bf16:
        return output.data.view(ml_dtypes.bfloat16).copy()
    return output.data.copy()
