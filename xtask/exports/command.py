"""Calls the command `kvscatter`, and reads the JSON that it prints."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from texts import Arrays, Text, for_encoder, stack

SECONDS = 300


class Failure(Exception):
    """The command refused or failed. The message is its reason."""


@dataclass(frozen=True)
class Kvscatter:
    """The command, and the ONNX Runtime and the plugin that it loads."""

    program: Path
    runtime: Path
    plugin: Path | None = None

    def convert(self, model: Path, output: Path, slots: int, encoder: Path | None) -> dict[str, Any]:
        """Makes the caches static, and writes an encoder with all outputs that the decoder takes."""
        more = ["--encoder-output", encoder] if encoder else []
        return self._run("convert", model, "-o", output, "--max-seq", slots, *more)

    def certify(self, model: Path, original: Path | None) -> dict[str, Any]:
        """Certifies a decoder in ONNX Runtime."""
        against = ["--original", original] if original else []
        return self._run("certify", model, *against, "--no-timing", *self._engine("ort", certify=True))

    def generate(
        self, model: Path, encoder: Path | None, texts: list[Text], steps: int, engine: str
    ) -> list[list[int]]:
        """Continues texts as one batch and returns the new tokens of each."""
        made = self.continued(model, encoder, texts, steps, engine)
        return [sample["tokens"] for sample in made["samples"]]

    def continued(
        self, model: Path, encoder: Path | None, texts: list[Text], steps: int, engine: str, *more: Any
    ) -> dict[str, Any]:
        """Continues texts as one batch and returns the tokens and the times."""
        options = [f"--prompt-ids={','.join(map(str, text.prompt))}" for text in texts]
        if encoder:
            options += ["--encoder", encoder]
            for name, array in stack(encoder_inputs(encoder, texts)).items():
                np.save(encoder.with_name(f"{name}.npy"), array)
                options += ["--encoder-input", f"{name}={encoder.with_name(f'{name}.npy')}"]
        return self._run("generate", model, *options, "--tokens", steps, *self._engine(engine), *more)

    def inspect(self, model: Path, target: str) -> dict[str, Any]:
        """Returns what the target refuses, by failing."""
        return self._run("inspect", model, "--target", target)

    def _engine(self, engine: str, certify: bool = False) -> list[Any]:
        if engine == "ort":
            plugin = self.plugin or "none"
            return ["--engine", "ort", "--ort-lib", self.runtime, "--ort-plugin", plugin]
        return ["--engine", engine]

    def _run(self, *words: Any) -> dict[str, Any]:
        line = [str(word) for word in (self.program, *words, "--json")]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{words[0]} took longer than {SECONDS} s") from error
        return _read(str(words[0]), done)


def encoder_inputs(encoder: Path, texts: list[Text]) -> list[Arrays]:
    """Returns what the encoder takes for each text."""
    names = [value.name for value in onnx.load(encoder, load_external_data=False).graph.input]
    return [for_encoder(text.inputs, names) for text in texts]


def _read(command: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        document = json.loads(done.stdout or done.stderr)
    except json.JSONDecodeError as error:
        lines = done.stderr.strip().splitlines() or [f"{command} ended with {done.returncode}"]
        raise Failure(lines[-1]) from error
    if "error" in document:
        raise Failure(document["error"]["message"])
    document["code"] = done.returncode
    return document
