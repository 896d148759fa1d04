"""Compares the logits of an export and its conversion, step by step, on the tokens that the export chooses.

    python logits.py EXPORT CONVERTED FOLDER THREADS CAPACITY CHUNK COUNT < PROMPTS

The builder's 4-bit products round their inputs to 8 bits (`accuracy_level` 4). The smallest difference before such a
product can change a rounding, so both models also run with products that do not round. Their copies are written to
FOLDER.

PROMPTS is a JSON list of lists of tokens. Prints a JSON list with an object for each prompt: the largest difference of
a logit between the two as they are (`rounded`), between the two without rounding (`exact`), and between the export as
it is and without rounding (`rounding`). Also in how many steps the two as they are choose the same token (`same`).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from worker import Kvscatter


def without_rounding(model: Path, folder: Path) -> Path:
    """Writes a copy of a model whose 4-bit products do not round their inputs. It shares the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = onnx.load(model, load_external_data=False)
    for node in graph.graph.node:
        for attribute in node.attribute:
            if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                attribute.i = 1
    onnx.save(graph, folder / model.name)
    for file in model.parent.iterdir():
        if file.name.startswith(model.name + ".") and not (folder / file.name).exists():
            os.link(file, folder / file.name)
    return folder / model.name


def compared(engines: dict[str, Kvscatter], tokens: list[int], count: int) -> dict[str, Any]:
    """Returns the largest differences after a prompt."""
    pairs = {
        "rounded": ("export", "converted"),
        "exact": ("exact export", "exact converted"),
        "rounding": ("export", "exact export"),
    }
    found, same = dict.fromkeys(pairs, 0.0), 0
    for engine in engines.values():
        engine.reset()
    for _ in range(count):
        logits = {name: engine.logits(tokens) for name, engine in engines.items()}
        for what, (one, other) in pairs.items():
            found[what] = max(found[what], float(np.abs(logits[one] - logits[other]).max()))
        tokens = [int(logits["export"].argmax())]
        same += tokens == [int(logits["converted"].argmax())]
    return {**found, "same": same, "of": count}


def main() -> None:
    """Prints the differences."""
    *paths, threads, capacity, chunk, count = sys.argv[1:]
    export, converted, folder = map(Path, paths)
    models = {"export": export, "converted": converted}
    models |= {f"exact {name}": without_rounding(path, folder / name) for name, path in models.items()}
    numbers = (int(threads), int(capacity), int(chunk))
    engines = {name: Kvscatter(path, *numbers) for name, path in models.items()}
    print(json.dumps([compared(engines, tokens, int(count)) for tokens in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
