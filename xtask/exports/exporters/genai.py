"""The model builder of onnxruntime-genai, run as its command is."""

import runpy
import shutil
import sys
from pathlib import Path

# The forked processes share what is imported here.
from onnxruntime_genai.models import builder  # noqa: F401


def fp32(checkpoint: Path, folder: Path) -> None:
    """Exports in float32."""
    _build(checkpoint, folder, "fp32", "cpu")


def fp16(checkpoint: Path, folder: Path) -> None:
    """Exports in float16, which the builder does for GPUs only.

    ONNX Runtime's CPU kernels run the model too, if the norms of queries and keys are separate nodes.
    """
    _build(checkpoint, folder, "fp16", "cuda", "--extra_options", "fuse_qk_norm_gqa=false")


def int4(checkpoint: Path, folder: Path) -> None:
    """Exports with weights of 4 bits."""
    _build(checkpoint, folder, "int4", "cpu")


def _build(checkpoint: Path, folder: Path, precision: str, provider: str, *more: str) -> None:
    cache = folder / "cache"
    options = {"-i": checkpoint, "-o": folder, "-p": precision, "-e": provider, "-c": cache}
    sys.argv = ["builder", *(str(word) for option in options.items() for word in option), *more]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    shutil.rmtree(cache, ignore_errors=True)
    # An encoder-decoder is two models.
    for name, model in {"encoder": "encoder_model", "decoder": "model"}.items():
        if (folder / f"{name}.onnx").exists():
            (folder / f"{name}.onnx").rename(folder / f"{model}.onnx")
