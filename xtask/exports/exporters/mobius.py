"""mobius, run as its command is."""

import sys
from pathlib import Path

import onnx
from mobius import __main__ as command


def growing(checkpoint: Path, folder: Path) -> None:
    """Exports with caches that grow."""
    _build(checkpoint, folder)


def static(checkpoint: Path, folder: Path) -> None:
    """Exports with caches of a fixed size, which `TensorScatter` writes."""
    _build(checkpoint, folder, "--static-cache", "--max-seq-len", "512")


def _build(checkpoint: Path, folder: Path, *options: str) -> None:
    sys.argv = ["mobius", "build", "--config", str(checkpoint), *options, str(folder)]
    result = command.main()
    if result:
        raise RuntimeError(f"mobius returned {result}")
    # An encoder-decoder is two models.
    for file in (folder / "decoder").glob("*"):
        file.rename(folder / file.name)
    if (folder / "encoder").exists():
        # Both keep weights in a file of the same name.
        onnx.save(onnx.load(folder / "encoder" / "model.onnx"), folder / "encoder_model.onnx")
