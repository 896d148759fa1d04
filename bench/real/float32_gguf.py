"""Writes a GGUF file with the same weights in float32, so that llama.cpp and ONNX compute with the same numbers.

python float32_gguf.py SOURCE TARGET
"""

import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants

WRITTEN_BY_GGUF = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def write(source: Path, target: Path) -> None:
    """Copies the metadata and dequantises the tensors."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    writer.add_file_type(LlamaFileType.ALL_F32)
    for field in reader.fields.values():
        if field.name.startswith(WRITTEN_BY_GGUF):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
