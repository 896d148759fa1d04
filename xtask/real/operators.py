"""Times each operator of a decode step in ONNX Runtime's profiler, for an export and its conversion.

    python operators.py EXPORT CONVERTED FOLDER THREADS CAPACITY TOKENS

The conversion runs with kvscatter's plugin. Prints a JSON object for each model: how often each operator runs in a
step with TOKENS tokens in the cache, and its median time in microseconds times that number. The profiler slows every
node, so the times compare operators and are not those of a step.
"""

import collections
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import kvscatter.onnxruntime

STEPS, PAUSE = 100, 0.06
FUSED = "layer of kvscatter"


class Model:
    """A model with its caches, which it writes in place."""

    def __init__(
        self, path: Path, options: ort.SessionOptions, providers: list[Any], cache: tuple[int, ...]
    ) -> None:
        self.session = ort.InferenceSession(path, options, providers=providers)
        self._binding, self._tokens = self.session.io_binding(), 0
        self._inputs = {each.name: each.shape for each in self.session.get_inputs()}
        for name in self._inputs:
            if name.startswith("past_key_values."):
                zeros = ort.OrtValue.ortvalue_from_numpy(np.zeros(cache, np.float32))
                self._binding.bind_ortvalue_input(name, zeros)
                self._binding.bind_ortvalue_output(name.replace("past_key_values", "present"), zeros)

    def feed(self, tokens: list[int]) -> None:
        """Runs the model once."""
        before, after = self._tokens, self._tokens + len(tokens)
        # The mask of a conversion has an element for each slot.
        slots = self._inputs["attention_mask"][1]
        mask = np.zeros((1, slots if isinstance(slots, int) else after), np.int64)
        mask[:, :after] = 1
        fed = {
            "input_ids": [tokens],
            "attention_mask": mask,
            "position_ids": [range(before, after)],
            "write_indices": [before],
            "nonpad_kv_seqlen": [after],
        }
        for name in self._inputs.keys() & fed.keys():
            value = ort.OrtValue.ortvalue_from_numpy(np.asarray(fed[name], np.int64))
            self._binding.bind_ortvalue_input(name, value)
        self._binding.bind_output("logits")
        self.session.run_with_iobinding(self._binding)
        self._tokens = after


def operators(model: Model) -> dict[str, dict[str, float]]:
    """Returns the number and the time of each operator in a step, and removes the profile."""
    file = Path(model.session.end_profiling())
    events = json.loads(file.read_text())
    file.unlink()
    times = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            times[FUSED if operator.startswith("Kvscatter") else operator].append(event["dur"])
    counts = {operator: round(len(found) / (STEPS + 1)) for operator, found in times.items()}
    return {
        operator: {"count": counts[operator], "us": counts[operator] * statistics.median(found)}
        for operator, found in times.items()
    }


def main() -> None:
    """Prints the operators of both models."""
    export, converted, folder = map(Path, sys.argv[1:4])
    threads, capacity, tokens = map(int, sys.argv[4:])
    written = json.loads((export.parent / "genai_config.json").read_text())["model"]["decoder"]
    cache = (1, written["num_key_value_heads"], capacity, written["head_size"])
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = threads, True
    options.profile_file_prefix = str(folder / "profile")
    cpu = ["CPUExecutionProvider"]
    plugin = [(kvscatter.onnxruntime.register(), {"fusion": "on"}), *cpu]
    models = {
        "export": Model(export, options, cpu, cache),
        "converted": Model(converted, options, plugin, cache),
    }
    for model in models.values():
        model.feed([token % 1000 for token in range(tokens)])
    for _ in range(STEPS):
        for model in models.values():
            # The threads of the other model wait actively for some 45 ms.
            time.sleep(PAUSE)
            model.feed([7])
    print(json.dumps({name: operators(model) for name, model in models.items()}))


if __name__ == "__main__":
    main()
