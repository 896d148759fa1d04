"""Converts every export, and compares what it generates with transformers or with the export.

    python check.py ROOT --command KVSCATTER [--exporter NAME] [--only FAMILY] [--reuse]

Writes `result.json` beside each export: for every check `null` if it passed, else the reason.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from command import Failure, Kvscatter, encoder_inputs
from compare import NEAR_TIE, Different, Expected, count_ties
from export import reason
from exporters import EXPORTERS, Exporter
from families import families
from original import Original
from texts import fit_together, read_texts

# Each text fits: 20 tokens of a prompt and 200 more.
SLOTS = 256


class Cell:
    """The checks of one export, whose results are in `results`."""

    def __init__(self, kvscatter: Kvscatter, exporter: Exporter, folder: Path, checkpoint: Path) -> None:
        self.kvscatter, self.exporter, self.folder = kvscatter, exporter, folder
        self.model = folder / "model.onnx"
        self.converted = folder / "converted" / "model.onnx"
        self.encoder: Path | None = None
        self.reference = json.loads((checkpoint / "reference.json").read_text())
        self.texts = read_texts(checkpoint)
        if self.texts[0].inputs:
            self.encoder = folder / "converted" / "encoder.onnx"
        self.results: dict[str, Any] = {}
        self.expected: list[Expected] = []

    def run(self) -> dict[str, Any]:
        """Runs the checks until one fails that the others need."""
        status = json.loads((self.folder / "status.json").read_text())
        self.results["export"] = status["reason"]
        if status["reason"] is None:
            self.results["opset"] = _operator_set(self.model)
        if status["reason"] is None and self._check("original", self._original):
            is_static = "static" in self.exporter.name
            if is_static:
                self.converted = self.model
            if is_static or self._check("convert", self._convert):
                self._check_converted(None if is_static else self.model)
        shutil.rmtree(self.folder / "converted", ignore_errors=True)
        return self.results

    def _check_converted(self, original: Path | None) -> None:
        self._check("certify", lambda: self._certify(original))
        for engine in ("ort", "tract"):
            self._check(engine, lambda engine=engine: self._generate(engine))
        self._check("checker", lambda: onnx.checker.check_model(self.converted, full_check=True))
        if self.exporter.numbers in ("float32", "float16"):
            self._check("tensorrt", self._inspect)

    def _check(self, name: str, check: Callable[[], Any]) -> bool:
        try:
            check()
            self.results[name] = None
        except Failure as failure:
            self.results[name] = str(failure)
        except Different as different:
            self.results[name] = f"other tokens: {different}"
        except Exception as error:
            self.results[name] = reason(error)
        return self.results[name] is None

    def _original(self) -> None:
        """Runs the export, and compares it with transformers if its weights are the same."""
        original = Original(self.model, self.encoder is not None)
        tokens = self.reference["tokens"]
        answers = [original.greedy(text, len(tokens[0])) for text in self.texts]
        self.expected = [Expected(*each) for each in zip(self.texts, answers, strict=True)]
        if self.exporter.numbers == "float32":
            self.results["transformers"] = [answer.tokens for answer in answers] == tokens

    def _convert(self) -> None:
        self.converted.parent.mkdir(exist_ok=True)
        self.kvscatter.convert(self.model, self.converted, SLOTS, self.encoder)

    def _certify(self, original: Path | None) -> None:
        certificate = self.kvscatter.certify(self.converted, original)
        if certificate["code"]:
            claims = [claim for kind in certificate["evidence"].values() for claim in kind]
            failed = [claim["id"] for claim in claims if claim["verdict"] == "failed"]
            raise Failure(f"{certificate['verdict']}: {', '.join(failed)}")

    def _generate(self, engine: str) -> None:
        numbers = self.exporter.numbers
        # With one scale for a whole step, the numbers of a sample depend on its neighbours.
        alone = numbers == "8-bit"
        if self.encoder:
            alone |= not fit_together(encoder_inputs(self.encoder, self.texts))
        ties = count_ties(
            lambda texts, steps: self.kvscatter.generate(self.converted, self.encoder, texts, steps, engine),
            self.expected,
            NEAR_TIE[numbers],
            alone,
        )
        self.results[f"{engine}_ties"] = ties

    def _inspect(self) -> None:
        found = self.kvscatter.inspect(self.converted, "tensorrt")
        if found["code"]:
            raise Failure("; ".join(each["message"] for each in found["tensorrt"]))


def _operator_set(model: Path) -> int:
    """Returns the version of ONNX's operators that a model uses."""
    imports = onnx.load(model, load_external_data=False).opset_import
    return next(each.version for each in imports if each.domain in ("", "ai.onnx"))


def main() -> None:
    """Checks what the arguments ask for."""
    options = argparse.ArgumentParser()
    options.add_argument("root", type=Path)
    options.add_argument("--command", type=Path, required=True)
    options.add_argument("--exporter", action="append", choices=[each.name for each in EXPORTERS])
    options.add_argument("--only", action="append")
    options.add_argument("--reuse", action="store_true")
    given = options.parse_args()
    kvscatter = Kvscatter(given.command, Path(sys.prefix))
    for exporter in EXPORTERS:
        if given.exporter and exporter.name not in given.exporter:
            continue
        for family in families(given.only):
            folder = given.root / exporter.name / family.name
            output = folder / "result.json"
            if not (folder / "status.json").exists() or (given.reuse and output.exists()):
                continue
            began = time.monotonic()
            results = Cell(kvscatter, exporter, folder, given.root / "checkpoints" / family.name).run()
            output.write_text(json.dumps(results, indent=1))
            failed = [f"{name}: {why}" for name, why in results.items() if isinstance(why, str)]
            if results.get("transformers") is False:
                failed.append("the export has other tokens than transformers")
            line = " | ".join(failed)[:200] or "ok"
            print(f"{exporter.name} {family.name}: {line} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
