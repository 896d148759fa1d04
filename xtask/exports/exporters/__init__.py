"""The exporters, each a function from a checkpoint to an ONNX model."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from families import Family

Export = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Exporter:
    """An exporter with one set of options."""

    name: str
    """The name of its column and of its folder."""
    function: str
    """The function that exports, as `module.function`. It takes the checkpoint and the folder for the model."""
    environment: str = "optimum"
    """The virtual environment that has the exporter."""
    numbers: str = "float32"
    """The numbers of its weights: float32, float16, 4-bit or 8-bit."""
    source: str = "checkpoints"
    """The folder that it exports from: `checkpoints`, or the exports of another exporter."""
    only_encoders: bool = False
    """Whether it makes a form that only encoder-decoders have."""

    def load(self) -> Export:
        """Imports the function, with the packages that it needs."""
        module, function = self.function.split(".")
        return getattr(import_module(f"exporters.{module}"), function)

    def takes(self, family: Family) -> bool:
        """Returns whether the family has the form that it makes."""
        return family.has_encoder or not self.only_encoders


EXPORTERS = [
    Exporter("genai-fp32", "genai.fp32", "genai"),
    Exporter("genai-fp16", "genai.fp16", "genai", numbers="float16"),
    Exporter("genai-int4", "genai.int4", "genai", numbers="4-bit"),
    Exporter("genai-0.14", "genai.fp32"),
    Exporter("mobius", "mobius.growing", "genai"),
    Exporter("mobius-static", "mobius.static", "genai"),
    Exporter("optimum", "optimum_onnx.plain"),
    Exporter("optimum-fp16", "optimum_onnx.fp16", numbers="float16"),
    Exporter("optimum-fused", "optimum_onnx.fused"),
    Exporter("optimum-merged", "processed.merged", source="optimum", only_encoders=True),
    Exporter("optimum-ort", "processed.optimised", source="optimum"),
    Exporter("optimum-4bit", "processed.four_bits", numbers="4-bit", source="optimum"),
    Exporter("optimum-int8", "processed.eight_bits", numbers="8-bit", source="optimum"),
    Exporter("optimum-1.18", "optimum_onnx.old", "optimum-1.18"),
    Exporter("torch-dynamo-20", "dynamo.opset20", "genai"),
    Exporter("torch-dynamo-23", "dynamo.opset23", "genai"),
    Exporter("torch-dynamo-24", "dynamo.opset24", "genai"),
]
