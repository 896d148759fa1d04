"""Quantised forms of another exporter's models, as ONNX Runtime's own tools make them."""

from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer


def four_bits(source: Path, folder: Path) -> None:
    """Replaces every `MatMul` with constant weights by `MatMulNBits`, with blocks of 32 weights and zero points."""
    quantizer = MatMulNBitsQuantizer(onnx.load(source / "model.onnx"), block_size=32, is_symmetric=False)
    quantizer.process()
    onnx.save(quantizer.model.model, folder / "model.onnx")


def eight_bits(source: Path, folder: Path) -> None:
    """Replaces every `MatMul` with constant weights by `DynamicQuantizeLinear` and `MatMulInteger`."""
    quantize_dynamic(source / "model.onnx", folder / "model.onnx", weight_type=QuantType.QUInt8)
