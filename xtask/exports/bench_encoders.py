"""Times steps of encoder-decoders whose caches have few or many slots.

    cargo xtask bench-encoders [--reuse] [--quick] [--write-docs]

Exports random models of usual shapes, converts them twice, and lets each engine continue the texts of the reference. In
every round, each engine runs each conversion once, in a shuffled order. Ratios are taken within a round. All tokens
must be those of transformers. With `--write-docs`, a round counts only if other programs left the processors idle.
"""

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

import host
from command import Kvscatter
from main import MAIN, Runner
from texts import read_texts

import pages
from paired import Samples, ratio

PAGE = pages.ROOT / "docs" / "encoder-decoders.md"
# The models by their names in families.toml.
MODELS = {"Whisper tiny": "whisper-tiny", "T5 small": "t5-small"}
EXPORTER = "optimum"
FEW, MANY = "448", "4,096"
# A multiple of the number of texts, which take turns.
ROUNDS, QUICK = 9, 3
# The share of the processors' time that other programs may use.
QUIET = 0.05


class Bench:
    """Converts and times one model."""

    def __init__(self, given: argparse.Namespace, name: str) -> None:
        checkpoint, self._name = given.root / "checkpoints" / name, name
        self._tokens = json.loads((checkpoint / "reference.json").read_text())["tokens"]
        self._texts, runtime = read_texts(checkpoint), Path(sys.prefix)
        alone = Kvscatter(given.command, runtime)
        self._engines = {
            "tract": (alone, "tract"),
            "ONNX Runtime with the plugin": (Kvscatter(given.command, runtime, given.plugin), "ort"),
            "ONNX Runtime": (alone, "ort"),
        }
        export = given.root / EXPORTER / name / "model.onnx"
        self._encoder = export.parent / "converted" / "encoder.onnx"
        self._encoder.parent.mkdir(exist_ok=True)
        self._models = {slots: self._encoder.with_name(f"{slots}.onnx") for slots in (FEW, MANY)}
        for slots, model in self._models.items():
            alone.convert(export, model, int(slots.replace(",", "")), self._encoder)

    def measure(self, rounds: int, wait: bool) -> dict[str, Samples]:
        """Returns the nanoseconds of a step in each round, by engine and slots."""
        samples: dict[str, dict[str, list[float]]] = {
            engine: {slots: [] for slots in self._models} for engine in self._engines
        }
        for turn in range(rounds):
            for engine in random.sample(list(self._engines), len(self._engines)):
                for slots, time in self._round(engine, turn % len(self._texts), wait).items():
                    samples[engine][slots].append(time)
            print(f"{self._name}: {turn + 1} of {rounds} rounds", flush=True)
        return samples

    def _round(self, engine: str, number: int, wait: bool) -> dict[str, float]:
        """Times each conversion once. With `wait`, repeats this until no other program has disturbed it."""
        while True:
            while wait and host.busy(1) > QUIET:
                pass
            others = host.Others()
            order = random.sample(list(self._models), len(self._models))
            times = {slots: self._step(engine, slots, number) for slots in order}
            if not wait or others.share() <= QUIET:
                return times

    def _step(self, engine: str, slots: str, number: int) -> float:
        kvscatter, kind = self._engines[engine]
        texts, wanted = [self._texts[number]], self._tokens[number]
        made = kvscatter.continued(
            self._models[slots], self._encoder, texts, len(wanted), kind, "--threads", 1
        )
        if made["samples"][0]["tokens"] != wanted:
            where = f"{self._name}, {engine}, {slots} slots"
            raise SystemExit(f"{where}: other tokens than transformers for text {number}")
        return 1e9 * made["decode"]["seconds"] / made["decode"]["steps"]


def rows(title: str, samples: dict[str, Samples]) -> list[list[str]]:
    """Returns the lines of a model in the table."""
    return [
        [
            title,
            engine,
            *(pages.shown(statistics.median(of[slots])) for slots in (FEW, MANY)),
            f"{ratio(of, MANY, FEW):.2f} ×",
        ]
        for engine, of in samples.items()
    ]


def main() -> None:
    """Prints the table and, with `--write-docs`, updates the page."""
    options = argparse.ArgumentParser(prog="cargo xtask bench-encoders")
    options.add_argument("root", type=Path)
    options.add_argument("--environments", type=Path, required=True)
    options.add_argument("--command", type=Path, required=True)
    options.add_argument("--plugin", type=Path, required=True)
    options.add_argument("--reuse", action="store_true", help="keep the exports that exist")
    options.add_argument("--quick", action="store_true", help="few rounds, to see that everything works")
    options.add_argument(
        "--write-docs", action="store_true", help="put the table into docs/encoder-decoders.md"
    )
    given = options.parse_args()
    given.only = list(MODELS.values())
    runner = Runner(given)
    runner.run(MAIN, "reference.py", "--environment", MAIN)
    runner.run(MAIN, "export.py", "--exporter", EXPORTER)
    random.seed(1)
    rounds = QUICK if given.quick else ROUNDS
    found = [
        row
        for title, name in MODELS.items()
        for row in rows(title, Bench(given, name).measure(rounds, given.write_docs))
    ]
    facts = [pages.machine("onnxruntime", "transformers"), f"tract {host.tract(pages.ROOT)}"]
    facts.append(f"commit {host.commit(pages.ROOT)}")
    head = ["model", "engine", f"{FEW} slots", f"{MANY} slots", "ratio"]
    text = f"{pages.table(head, found, left=2)}\n\n{'; '.join(facts)}."
    print(f"\n{text}")
    if given.write_docs:
        pages.write(PAGE, "cargo xtask bench-encoders", text)


if __name__ == "__main__":
    main()
