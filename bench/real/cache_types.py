"""Measures caches of each type, and writes docs/cache-types.md: `cargo xtask bench-cache-types --help`.

Needs the exports of `cargo xtask bench-real`, which it makes if they do not exist. Each table is measured alone and
kept in ROOT/cache-types.json.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cache_pages
import drive
import fetch_and_export as source
import host
import numpy as np
import onnx
import torch
from candidates import Tools, source_of
from in_place import Decoder, InPlace, register
from layers import Heads, layers, width
from main import QUIET, text

import pages

Array = np.ndarray[Any, Any]
# The options of the conversion for each type, by the name that tables have. The first one is compared with.
TYPES = {
    "float32": (),
    "float16": ("--cache-type", "float16"),
    "bfloat16": ("--cache-type", "bfloat16"),
    "int8": ("--cache-type", "int8"),
    "int8, not rotated": ("--cache-type", "int8", "--no-rotation"),
}
MODELS = {
    "SmolLM2-135M": ("smollm2", "genai-fp32"),
    "SmolLM2-135M, 4-bit": ("smollm2", "genai-int4"),
    "Gemma 3 270M": ("gemma3", "mobius"),
}
# The models whose quality is measured, and the lengths of the prompts that they continue.
JUDGED = {"SmolLM2-135M": (5, 300, 1500), "Gemma 3 270M": (5, 700, 3000)}
# Logits of this many tokens are in memory at once.
CHUNK = 100
# Threads of ONNX Runtime wait actively for some 45 ms after a run.
PAUSE = 0.06
# The layers of the model that is compared with ONNX Runtime's own operator, and the tokens in its caches.
LAYERS, CACHED = 8, 4096


class Bench:
    """Measures tables."""

    def __init__(self, given: argparse.Namespace, tools: Tools) -> None:
        self._given, self._tools, self._quick = given, tools, given.quick
        register(given.plugin)
        torch.set_num_threads(given.threads)

    def kernel(self) -> Any:
        """One call of attention. The benchmark in Rust measures it."""
        folder = self._given.root / "kernel"
        options = ["cache-types", "--out", folder, *(["--quick"] if self._quick else [])]
        if code := subprocess.run([self._given.bench, *options]).returncode:
            raise drive.Failure(f"{self._given.bench.name} ended with {code}")
        return json.loads((folder / "cache-types.json").read_text())

    def layer(self) -> Any:
        """Layers in the plugin, and ONNX Runtime's own operator with int8 caches."""
        found = []
        for heads in (Heads(9, 3, 64), Heads(32, 8, 128), Heads(8, 8, 64), Heads(8, 8, 128)):
            with tempfile.TemporaryDirectory() as folder:
                samples = self._timed_layers(heads, Path(folder))
            found.append({"heads": [heads.query, heads.stored, heads.size], "seconds": samples})
            print(cache_pages.layer_line(found[-1]), flush=True)
        return found

    def _timed_layers(self, heads: Heads, folder: Path) -> dict[str, list[float]]:
        """Returns the seconds of a layer in each round."""
        # Rows are between -1 and 1, which are then codes of the whole range.
        scale, random = 1 / 127, np.random.default_rng(1)
        plain, theirs, ours = (folder / name for name in ("plain.onnx", "theirs.onnx", "ours/model.onnx"))
        onnx.save(layers(heads, LAYERS), plain)
        onnx.save(layers(heads, LAYERS, scale), theirs)
        self._tools.convert(plain, ours.parent, *TYPES["int8"])
        engines = {"ours": InPlace(ours, 1), "theirs": InPlace(theirs, 1, plugin=False)}
        engines["ours"].add_all()
        slots = next(iter(engines["ours"].caches.values())).shape[2]
        for layer in range(LAYERS):
            for part in ("key", "value"):
                engines["theirs"].add(f"past.{layer}.{part}", f"present.{layer}.{part}", slots)
        for engine in engines.values():
            for cache in engine.caches.values():
                is_code = cache.dtype == np.int8
                cache[:] = random.integers(-127, 128, cache.shape, np.int8) if is_code else scale
        rows = random.uniform(-1, 1, (1, 1, width(heads))).astype(np.float32)
        step = {"inputs_embeds": rows, "write_indices": [CACHED - 1], "nonpad_kv_seqlen": [CACHED]}
        # A converted model takes a mask of all slots, and the operator one of the tokens.
        masks = {"ours": (np.arange(slots) < CACHED), "theirs": np.ones(CACHED)}
        samples: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(5 if self._quick else 61):
            for name, engine in sorted(engines.items(), reverse=turn % 2 == 1):
                engine.run({**step, "attention_mask": masks[name].astype(np.int64)[None]})
                samples[name].append(engine.seconds / LAYERS)
        return samples

    def step(self) -> Any:
        """Whole steps of a decoder with 4-bit weights."""
        model, kinds = "SmolLM2-135M, 4-bit", list(TYPES)[:4]
        tokens, seconds = self._tokens(model), {}
        decoders = {kind: Decoder(self._converted(model, kind), self._given.threads) for kind in kinds}
        for length in (64, 512) if self._quick else (64, 1024, 4096, 7900):
            for decoder in decoders.values():
                decoder.cached = min(decoder.cached, length)
                for _ in decoder.steps(tokens[decoder.cached : length], 512):
                    pass
            seconds[length] = {kind: [] for kind in kinds}
            for turn in range(5 if self._quick else 31):
                for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
                    time.sleep(PAUSE)
                    decoders[kind].cached = length
                    decoders[kind].step(tokens[length : length + 1])
                    seconds[length][kind].append(decoders[kind].session.seconds)
            print(cache_pages.step_line(length, seconds[length]), flush=True)
        return {"model": model, "threads": self._given.threads, "seconds": seconds}

    def bytes(self) -> Any:
        """The bytes of the caches of a sample, as `inspect` counts them."""
        found: dict[str, dict[str, int]] = {}
        for model in JUDGED:
            for kind in list(TYPES)[:4]:
                words = [self._tools.kvscatter, "inspect", "--json", self._converted(model, kind)]
                caches = json.loads(drive.output(words, "", 1))["caches"]
                found.setdefault(model, {})[kind] = sum(cache["bytes"] for cache in caches)
        return found

    def quality(self) -> Any:
        """The logits on a text, and continuations of prompts, against caches of float32."""
        found: dict[str, Any] = {}
        for model, prompts in JUDGED.items():
            tokens = self._tokens(model)
            read = tokens[: 200 if self._quick else 1500]
            prompts = tuple(count for count in prompts if not self._quick or count <= 300)
            whole: list[Array] = []
            wanted: list[list[int]] = []
            of_model = found[model] = {"tokens": len(read), "types": {}, "continued": []}
            for kind in TYPES:
                decoder = Decoder(self._converted(model, kind), self._given.threads)
                if kind == "float32":
                    whole = list(decoder.steps(read, CHUNK))
                else:
                    pairs = zip(whole, decoder.steps(read, CHUNK), strict=True)
                    of_model["types"][kind] = compared([divergence(*pair) for pair in pairs])
                    print(f"{model}: {kind}: {cache_pages.quality_line(of_model['types'][kind])}", flush=True)
                if kind not in ("float32", "float16"):
                    continue
                for at, count in enumerate(prompts):
                    new = decoder.continuation(tokens[:count], 16 if self._quick else 128, CHUNK)
                    if kind == "float32":
                        wanted.append(new)
                        continue
                    same = drive.agreeing(new, wanted[at])
                    of_model["continued"].append({"prompt": count, "same": same, "of": len(new)})
                    print(f"{model}: {same} of {len(new)} tokens after {count}", flush=True)
        return found

    def codes(self) -> Any:
        """The codes of the first layer, as each engine stores them."""
        model = "SmolLM2-135M"
        tokens, path = self._tokens(model)[:300], self._converted(model, "int8")
        names = {part: f"past_key_values.0.{part}" for part in ("key", "value")}

        def stored(decoder: Decoder) -> dict[str, Array]:
            for _ in decoder.steps(tokens, CHUNK):
                pass
            return {part: decoder.session.caches[name][:, :, : len(tokens)] for part, name in names.items()}

        threads = self._given.threads
        engines = {"the plugin": stored(Decoder(path, threads))}
        engines["ONNX Runtime"] = stored(Decoder(path, threads, plugin=False))
        engines["tract"] = self._codes_of_tract(path, tokens, names)
        rows = stored(Decoder(self._converted(model, "float32"), threads))
        rows["key"] = rows["key"] @ hadamard(rows["key"].shape[-1])
        engines["NumPy"] = {part: quantized(rows[part]) for part in names}
        found = []
        first, *others = engines
        for other in others:
            for part in names:
                apart = np.abs(engines[first][part].astype(int) - engines[other][part])
                numbers = {"share": float((apart > 0).mean()), "most": int(apart.max()), "count": apart.size}
                found.append({"engine": other, "part": part, **numbers})
                print(cache_pages.codes_line(found[-1]), flush=True)
        return found

    def _codes_of_tract(self, model: Path, tokens: list[int], names: dict[str, str]) -> dict[str, Array]:
        from safetensors.numpy import load_file

        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "saved"
            ids = ",".join(map(str, tokens))
            words = [self._tools.kvscatter, "generate", model, "--prompt-ids", ids, "--tokens", 1]
            drive.output([*words, "--save-prefix", saved], "", self._given.threads)
            caches = load_file(saved)
            return {part: caches[name] for part, name in names.items()}

    def _converted(self, model: str, kind: str) -> Path:
        """Returns a model with caches of a type, which is made once."""
        name, exporter = MODELS[model]
        folder, _, export = source_of(name, self._tools)
        if kind == "float32":
            return self._tools.convert(export(exporter), folder / f"{exporter}-converted")
        target = folder / f"{exporter}-{kind.replace(', ', '-').replace(' ', '-')}"
        return self._tools.convert(export(exporter), target, "--weights", "link", *TYPES[kind])

    def _tokens(self, model: str) -> list[int]:
        name, _ = MODELS[model]
        _, checkpoint, _ = source_of(name, self._tools)
        return text(checkpoint / "tokenizer.json", self._tools.repository)


def divergence(wanted: Array, found: Array) -> tuple[Array, Array]:
    """Returns the Kullback-Leibler divergence in nats of each token, and whether the most likely word is the same."""
    one, other = (torch.log_softmax(torch.from_numpy(each).double(), -1) for each in (wanted, found))
    nats = (one.exp() * (one - other)).sum(-1)
    return nats.numpy(), (one.argmax(-1) == other.argmax(-1)).numpy()


def compared(parts: list[tuple[Array, Array]]) -> dict[str, float]:
    """Returns the mean divergence, that which 99% of the tokens do not exceed, and the share of equal first words."""
    nats, same = (np.concatenate(each) for each in zip(*parts, strict=True))
    return {"mean": float(nats.mean()), "p99": float(np.quantile(nats, 0.99)), "same": float(same.mean())}


def hadamard(size: int) -> Array:
    """Returns the orthonormal Hadamard matrix of a power of two."""
    block = np.ones((1, 1))
    while len(block) < size:
        block = np.block([[block, block], [block, -block]])
    return (block / np.sqrt(size)).astype(np.float32)


def quantized(rows: Array) -> Array:
    """Returns the codes of rows, by the rule of docs/cache-types.md."""
    most = np.abs(rows).max(-1, keepdims=True)
    scales = np.maximum(most * np.float32(1 / 127), np.float32(2.0**-100))
    return np.rint(rows / scales).astype(np.int8)


TABLES: dict[str, Callable[[Bench], Any]] = {
    "kernel": Bench.kernel,
    "layer": Bench.layer,
    "step": Bench.step,
    "bytes": Bench.bytes,
    "quality": Bench.quality,
    "codes": Bench.codes,
}


def arguments() -> argparse.Namespace:
    """Reads the options."""
    options = argparse.ArgumentParser(
        prog="cargo xtask bench-cache-types",
        description="Measures the speed, the bytes and the error of caches of each type, in about ten minutes.",
    )
    options.add_argument("root", type=Path, help=argparse.SUPPRESS)
    for name in ("--environments", "--command", "--bench", "--plugin"):
        options.add_argument(name, type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument(
        "--only",
        action="append",
        choices=TABLES,
        help="measure this table; repeat it. The others keep their results",
    )
    options.add_argument(
        "--quick", action="store_true", help="measure briefly, as a test that everything works"
    )
    options.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of whole models")
    options.add_argument("--from", dest="again", action="store_true", help="measure nothing")
    options.add_argument(
        "--write-docs", action="store_true", help="write the tables into docs/cache-types.md"
    )
    return options.parse_args()


def measured(given: argparse.Namespace, results: dict[str, Any], file: Path) -> None:
    """Measures the tables that the options choose, and saves each."""
    tools = Tools(given.root, given.environments, given.command, Path(), given.threads)
    bench = Bench(given, tools)
    for name in given.only or TABLES:
        busy, began, stolen = host.busy(), time.monotonic(), host.Stolen()
        if busy > QUIET:
            print("other programs run, so these times mean little", flush=True)
        print(f"measuring {name}", flush=True)
        table = TABLES[name](bench)
        facts = {
            "CPU": pages.machine("onnxruntime"),
            "Linux": platform.release(),
            "commit": host.commit(tools.repository),
        }
        quality = {"hasty": given.quick, "busy": busy, "stolen": stolen.share()}
        results[name] = {"found": table, "machine": facts, **quality}
        file.write_text(json.dumps(results, indent=1))
        print(f"measured {name} in {time.monotonic() - began:.0f} s", flush=True)


def check_quality(results: dict[str, Any]) -> None:
    """Fails if results are not good enough for the page."""
    missing = [name for name in TABLES if name not in results]
    hasty = [name for name, table in results.items() if table["hasty"]]
    timed = ("kernel", "layer", "step")
    busy = [name for name in timed if name in results and results[name]["busy"] > QUIET]
    for names, why in (
        (missing, "are missing"),
        (hasty, "are quick"),
        (busy, "were measured while other programs ran"),
    ):
        if names:
            raise drive.Failure(
                f"--write-docs: the tables {', '.join(names)} {why}: measure them with --only"
            )


def main() -> None:
    """Measures what the arguments ask for, and writes the results."""
    given = arguments()
    file = given.root / "cache-types.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    try:
        if not given.again:
            given.root.mkdir(parents=True, exist_ok=True)
            measured(given, results, file)
        if given.write_docs:
            check_quality(results)
        cache_pages.write(results, given.root, given.write_docs)
    except (drive.Failure, source.Failure) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
