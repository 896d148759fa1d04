"""Other forms of another exporter's models, as ONNX Runtime and its tools make them."""

import shutil
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer


def merged(source: Path, folder: Path) -> None:
    """Takes the decoder whose `If` runs with and without caches."""
    shutil.copy(source / "decoder_model_merged.onnx", folder / "model.onnx")


def four_bits(source: Path, folder: Path) -> None:
    """Replaces every `MatMul` with constant weights by `MatMulNBits`, with blocks of 32 weights and zero points."""
    quantizer = MatMulNBitsQuantizer(onnx.load(source / "model.onnx"), block_size=32, is_symmetric=False)
    quantizer.process()
    onnx.save(quantizer.model.model, folder / "model.onnx")


def eight_bits(source: Path, folder: Path) -> None:
    """Replaces every `MatMul` with constant weights by `DynamicQuantizeLinear` and `MatMulInteger`."""
    quantize_dynamic(source / "model.onnx", folder / "model.onnx", weight_type=QuantType.QUInt8)


def optimised(source: Path, folder: Path) -> None:
    """Saves what ONNX Runtime makes of the graph when it loads it, with its extended optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "model.onnx")
    onnxruntime.InferenceSession(source / "model.onnx", options, providers=["CPUExecutionProvider"])
