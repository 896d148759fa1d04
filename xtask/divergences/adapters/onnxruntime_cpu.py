"""ONNX Runtime with its own kernels on the CPU."""

import onnxruntime as ort
import ort_sessions


def name():
    return "onnxruntime CPU"


def version():
    return ort.__version__


def run(case, in_place):
    session = ort.InferenceSession(
        str(case.model), ort_sessions.options(), providers=["CPUExecutionProvider"], enable_fallback=0
    )
    return ort_sessions.run(session, case, in_place)


OPERATORS = ["TensorScatter", "Attention"]
