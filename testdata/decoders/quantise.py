"""Makes `optimum-llama-4bit` and `optimum-llama-int8` from `../optimum-llama`.

    pip install onnxruntime==1.31.* onnx onnx-ir
    python testdata/decoders/quantise.py
"""

from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

HERE = Path(__file__).parent
ORIGINAL = HERE.parent / "optimum-llama" / "model.onnx"


def folder(name: str) -> Path:
    (HERE / name).mkdir(exist_ok=True)
    return HERE / name / "model.onnx"


def four_bits() -> None:
    """Replaces every `MatMul` with constant weights by `MatMulNBits`, with blocks of 32 weights and zero points."""
    quantizer = MatMulNBitsQuantizer(onnx.load(ORIGINAL), block_size=32, is_symmetric=False, accuracy_level=1)
    quantizer.process()
    onnx.save(quantizer.model.model, folder("optimum-llama-4bit"))


def eight_bits() -> None:
    """Replaces every `MatMul` with constant weights by `DynamicQuantizeLinear` and `MatMulInteger`."""
    quantize_dynamic(ORIGINAL, folder("optimum-llama-int8"), weight_type=QuantType.QUInt8)


if __name__ == "__main__":
    four_bits()
    eight_bits()
