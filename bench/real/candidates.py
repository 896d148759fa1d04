"""The models, and the engines that run each."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import fetch_and_export as source

HERE = Path(__file__).parent
GENAI, GENAI_OURS = "onnxruntime-genai", "onnxruntime-genai with kvscatter"
OURS, OURS_UNCONVERTED = "kvscatter, ONNX Runtime", "kvscatter, ONNX Runtime, unconverted"
OURS_TRACT, OURS_MOBIUS = "kvscatter, tract", "kvscatter, mobius"
DYNAMIC, STATIC, LLAMA = "transformers, dynamic cache", "transformers, static cache", "llama.cpp"
# Slots of converted models, and room in the caches of the other engines.
CAPACITY = 8192
# The longest part of a prompt that runs at once, in engines that let their caller choose.
CHUNK = 512


@dataclass(frozen=True)
class Tools:
    """The programs and folders of a run."""

    root: Path
    environments: Path
    kvscatter: Path
    tract: Path
    threads: int
    repository: Path = HERE.parents[1]

    def worker(self, engine: str, model: Path) -> list[Any]:
        """Returns the command that runs an engine."""
        numbers = [self.threads, CAPACITY, CHUNK]
        if engine == "tract":
            return [self.tract, model, *numbers]
        python = self.llama if engine == "llama" else sys.executable
        return [python, HERE / "worker.py", engine, model, *numbers]

    @cached_property
    def llama(self) -> Path:
        """The interpreter of the environment with llama.cpp, which is compiled once."""
        folder = self.root / "environments" / "llama"
        make = [
            sys.executable,
            HERE.parents[1] / "xtask/python/environment.py",
            folder,
            HERE / "locks/llama.txt",
        ]
        source.run("llama.cpp", make, self.root)
        return folder / "bin" / "python"

    def convert(self, model: Path, folder: Path, *options: str) -> Path:
        """Converts a model with these options of the command, unless it is done."""
        converted = folder / "model.onnx"
        if not converted.exists():
            source.needs(folder.parent, 0.1 if "link" in options else 2 * _gigabytes(model.parent))
            with source.partial(folder) as unfinished:
                unfinished.mkdir(parents=True)
                output = unfinished / converted.name
                words = [self.kvscatter, "convert", model, "-o", output, "--max-seq", CAPACITY, *options]
                source.run(folder.name, words, folder.parent)
        return converted


@dataclass(frozen=True)
class Candidate:
    """An engine with a model."""

    name: str
    engine: str
    model: Path
    timed: bool = True


@dataclass(frozen=True)
class Group:
    """Candidates that are compared, with the same weights."""

    id: str
    title: str
    tokenizer: Path
    candidates: list[Candidate]
    prompts: tuple[int, ...] = (5, 300, 1500)
    reference: Path | None = None
    """The checkpoint whose tokens are compared, for transformers."""
    logits: tuple[Path, Path] | None = None
    """The export and its conversion, whose logits are compared."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The reasons why candidates are missing."""
    notes: list[str] = field(default_factory=list)

    def only(self, words: list[str] | None) -> "Group":
        """Returns the group with the candidates that the options choose."""
        chosen = [each for each in self.candidates if is_chosen(f"{self.id} {each.name}", words)]
        return replace(self, candidates=chosen)


def is_chosen(name: str, words: list[str] | None) -> bool:
    """Returns whether one of the options names a candidate, by some of its words."""
    return not words or any(all(word in name.lower() for word in each.lower().split()) for each in words)


def _attempt(group: dict[str, str], name: str, make: Callable[[], Path]) -> Path | None:
    """Makes a model, or notes the reason why there is none."""
    try:
        return make()
    except source.Failure as error:
        group[name] = str(error).removesuffix(")").rsplit(" (", 1)[0]
        print(f"{name} left out: {group[name]}", flush=True)
        return None


def groups_of_source(name: str, tools: Tools, only: list[str] | None) -> list[Group]:
    """Fetches a model, exports and converts it, unless no candidate of it is chosen."""
    if only and not any(is_chosen(f"{name} float32 4-bit {each}", only) for each in NAMES):
        return []
    return {"smollm2": _smollm2, "gemma3": _gemma3}[name](tools)


NAMES = [GENAI, GENAI_OURS, OURS, OURS_UNCONVERTED, OURS_TRACT, OURS_MOBIUS, DYNAMIC, STATIC, LLAMA]


def source_of(name: str, tools: Tools) -> tuple[Path, Path, Callable[..., Path]]:
    """Returns the folder of a model, its checkpoint, and a function that exports."""
    folder, weights = tools.root / name, source.SOURCES[name]
    gguf, checkpoint = source.fetch(weights, folder), folder / "checkpoint"
    source.read(gguf, checkpoint)

    def export(exporter: str, target: str = "", python: Path = Path(sys.executable)) -> Path:
        target = target or exporter
        source.export(checkpoint, folder / target, exporter, weights.exported, str(python))
        return folder / target / "model.onnx"

    return folder, checkpoint, export


def _float32(gguf: Path) -> Path:
    """Returns the GGUF file with float32 weights."""
    target = gguf.with_name("float32.gguf")
    if not target.exists():
        with source.partial(target) as unfinished:
            source.run(
                "float32-gguf", [sys.executable, HERE / "float32_gguf.py", gguf, unfinished], gguf.parent
            )
    return target


def _others(checkpoint: Path) -> list[Candidate]:
    return [
        Candidate(DYNAMIC, "transformers", checkpoint),
        Candidate(STATIC, "transformers-static", checkpoint),
    ]


def _llama(tools: Tools, gguf: Callable[[], Path], left_out: dict[str, str]) -> list[Candidate]:
    python = _attempt(left_out, LLAMA, lambda: tools.llama)
    return [Candidate(LLAMA, "llama", gguf())] if python else []


def _onnx(tools: Tools, export: Path | None, converted: Path | None) -> list[Candidate]:
    candidates = []
    if export:
        candidates += [Candidate(GENAI, "genai", export), Candidate(GENAI_OURS, "genai-kvscatter", export)]
        candidates.append(Candidate(OURS_UNCONVERTED, "kvscatter", export))
    if converted:
        candidates += [Candidate(OURS, "kvscatter", converted), Candidate(OURS_TRACT, "tract", converted)]
    return candidates


def _smollm2(tools: Tools) -> list[Group]:
    folder, checkpoint, export = source_of("smollm2", tools)
    tokenizer, gguf = checkpoint / "tokenizer.json", folder / "weights.gguf"
    plain, four = export("genai-fp32"), export("genai-int4")
    converted = tools.convert(plain, folder / "genai-fp32-converted")
    converted_four = tools.convert(four, folder / "genai-int4-converted")
    mobius = tools.convert(export("mobius"), folder / "mobius-converted")
    left_out: dict[str, str] = {}
    return [
        Group(
            "smollm2 float32",
            "SmolLM2-135M, float32",
            tokenizer,
            [
                *_others(checkpoint),
                *_llama(tools, lambda: _float32(gguf), left_out),
                *_onnx(tools, plain, converted),
                Candidate(OURS_MOBIUS, "kvscatter", mobius, timed=False),
            ],
            reference=checkpoint,
            left_out=left_out,
        ),
        Group(
            "smollm2 4-bit",
            "SmolLM2-135M, 4-bit",
            tokenizer,
            [*_llama(tools, lambda: gguf, left_out), *_onnx(tools, four, converted_four)],
            reference=checkpoint,
            logits=(four, converted_four),
            left_out=left_out,
        ),
    ]


def _gemma3(tools: Tools) -> list[Group]:
    folder, checkpoint, export = source_of("gemma3", tools)
    converted = tools.convert(export("mobius"), folder / "mobius-converted")
    older = tools.environments / "optimum" / "bin" / "python"
    left_out: dict[str, str] = {}
    newest = f"the builder of onnxruntime-genai {_version(Path(sys.executable))}"
    _attempt(left_out, newest, lambda: export("genai-fp32"))
    genai = _attempt(left_out, GENAI, lambda: export("genai-fp32", "genai-0.14-fp32", older))
    return [
        Group(
            "gemma3 float32",
            "Gemma 3 270M, float32",
            checkpoint / "tokenizer.json",
            [
                *_others(checkpoint),
                *_llama(tools, lambda: _float32(folder / "weights.gguf"), left_out),
                *_onnx(tools, genai, converted),
            ],
            prompts=(5, 300, 1500, 3000),
            reference=checkpoint,
            left_out=left_out,
            notes=[
                f"The GenAI export is that of the builder {_version(older)}, the conversion that of mobius."
            ],
        )
    ]


def groups_of_folder(folder: Path, tools: Tools) -> list[Group]:
    """Returns the candidates that a folder of a person has files for."""
    folder, left_out = folder.resolve(), {}
    models, ggufs = sorted(folder.glob("*.onnx")), sorted(folder.glob("*.gguf"))
    candidates = _others(folder) if sorted(folder.glob("*.safetensors")) else []
    if ggufs:
        candidates += _llama(tools, lambda: ggufs[0], left_out)
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise source.Failure(f"{folder} has several models ({names}), and must have one")
    if models:
        target = tools.root / "folders" / folder.name / "converted"
        converted = _attempt(left_out, OURS, lambda: tools.convert(models[0], target))
        candidates += _onnx(tools, models[0], converted)
    if not candidates:
        raise source.Failure(f"{folder} has no .onnx, .safetensors or .gguf file")
    has_genai = (folder / "genai_config.json").exists()
    if models and not has_genai:
        left_out |= dict.fromkeys((GENAI, GENAI_OURS), "no genai_config.json")
        candidates = [each for each in candidates if each.name not in left_out]
    reference = folder if sorted(folder.glob("*.safetensors")) else None
    tokenizer = folder / "tokenizer.json"
    return [Group("folder", folder.name, tokenizer, candidates, reference=reference, left_out=left_out)]


def _version(python: Path) -> str:
    """Returns the version of onnxruntime-genai in an environment."""
    words = "import importlib.metadata as m; print(m.version('onnxruntime-genai'))"
    return subprocess.run([python, "-c", words], capture_output=True, text=True).stdout.strip()


def _gigabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e9
