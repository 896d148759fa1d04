"""Optimum, as `optimum-cli export onnx` exports decoders with their caches, and the decoders of encoder-decoders."""

import inspect
import json
from pathlib import Path
from typing import Any

from optimum.exporters.onnx import main_export
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES


def plain(checkpoint: Path, folder: Path) -> None:
    """Exports in float32."""
    _export(checkpoint, folder)


def fp16(checkpoint: Path, folder: Path) -> None:
    """Exports in float16."""
    _export(checkpoint, folder, dtype="fp16")


def fused(checkpoint: Path, folder: Path) -> None:
    """Exports in float32, and fuses nodes as `--optimize O2` does."""
    _export(checkpoint, folder, optimize="O2")


def old(checkpoint: Path, folder: Path) -> None:
    """Exports in float32 with a version whose options have other defaults."""
    _export(checkpoint, folder, no_post_process=True)


def _export(checkpoint: Path, folder: Path, **options: Any) -> None:
    if "local_files_only" in inspect.signature(main_export).parameters:
        options["local_files_only"] = True
    task = "text-generation-with-past"
    config = json.loads((checkpoint / "config.json").read_text())
    if config.get("is_encoder_decoder"):
        is_speech = config["model_type"] in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
        task = ("automatic-speech-recognition" if is_speech else "text2text-generation") + "-with-past"
    # Each model is compared with transformers later, over more steps.
    main_export(str(checkpoint), str(folder), task=task, do_validation=False, **options)
    decoder = folder / "decoder_with_past_model.onnx"
    if decoder.exists():
        decoder.rename(folder / "model.onnx")
