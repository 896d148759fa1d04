"""Checks the error of a runtime that does not support such plugins. Run this with ONNX Runtime 1.23."""

import os

import onnxruntime as ort

LIBRARY = os.environ["KVSCATTER_ORT_LIBRARY"]
EXPECTED = f"kvscatter needs ONNX Runtime 1.24 or newer, this is {ort.__version__}"


def check_refused(load) -> None:
    try:
        load()
    except Exception as refusal:
        assert EXPECTED in str(refusal), refusal
    else:
        raise AssertionError(f"onnxruntime {ort.__version__} was accepted")


check_refused(lambda: ort.register_execution_provider_library("kvscatter", LIBRARY))
check_refused(lambda: ort.SessionOptions().register_custom_ops_library(LIBRARY))
print(f"refused: {EXPECTED}")
