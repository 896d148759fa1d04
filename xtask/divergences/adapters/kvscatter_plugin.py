"""Our plugin for ONNX Runtime, as an execution provider. KVSCATTER_ORT_LIBRARY is its path."""

import os

import ort_sessions  # isort: skip, it sets a variable that onnxruntime reads
import onnxruntime as ort

PROVIDER = "KvscatterExecutionProvider"
LIBRARY = os.environ["KVSCATTER_ORT_LIBRARY"]

ort.register_execution_provider_library(PROVIDER, LIBRARY)
DEVICES = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def name():
    return "kvscatter plugin"


def version():
    return f"onnxruntime {ort.__version__}"


def run(case, in_place):
    options = ort_sessions.options()
    options.add_provider_for_devices(DEVICES, {})
    session = ort.InferenceSession(str(case.model), options, enable_fallback=0)
    return ort_sessions.run(session, case, in_place)
