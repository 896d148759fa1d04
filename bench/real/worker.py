"""Runs one engine, and answers the requests of `drive.py`.

    python worker.py ENGINE MODEL THREADS CAPACITY CHUNK

Each line of the standard input is a request, and has one line as its answer:

- `reset` empties the cache.
- `feed 1,2,3` adds tokens to the cache. The answer is the seconds, and the most likely next token.
- `decode N` feeds the most likely token so often, each in a step. The answer is the seconds of each step, and the token
  that each step chose.
- `caches` returns the bytes of the caches.

`CHUNK` is the longest part of a prompt that an engine runs at once, if it lets its caller choose.
"""

import json
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class Engine(ABC):
    """An engine with one sequence of tokens in its cache."""

    @abstractmethod
    def reset(self) -> None:
        """Empties the cache."""

    @abstractmethod
    def feed(self, tokens: list[int]) -> int:
        """Adds tokens to the cache, and returns the most likely next one."""

    def step(self, token: int) -> int:
        """Adds one token, which the last call has returned."""
        return self.feed([token])

    @abstractmethod
    def caches(self) -> int:
        """Returns the bytes of the caches."""


class Kvscatter(Engine):
    """Our session in ONNX Runtime with the plugin. It writes the caches in place."""

    def __init__(self, model: Path, threads: int, capacity: int, chunk: int) -> None:
        import kvscatter

        try:
            self._session = kvscatter.KvSession(model, threads=threads)
        except kvscatter.OptionError:
            # The model does not fix its capacity.
            self._session = kvscatter.KvSession(model, threads=threads, capacity=capacity)
        self._chunk, self._sample = chunk, self._session.add()

    def reset(self) -> None:
        self._session.truncate(self._sample, 0)

    def feed(self, tokens: list[int]) -> int:
        return int(self.logits(tokens).argmax())

    def logits(self, tokens: list[int]) -> Any:
        """Adds tokens to the cache, and returns the logits after the last one."""
        return self._session.prefill({self._sample: tokens}, chunk=self._chunk).last(self._sample)

    def caches(self) -> int:
        return self._session.memory().total


class GenAI(Engine):
    """onnxruntime-genai with the settings that its exporter wrote, a number of threads, and perhaps our plugin."""

    def __init__(self, model: Path, threads: int, capacity: int, chunk: int, plugin: bool = False) -> None:
        import onnxruntime_genai as genai

        written = json.loads((model.parent / "genai_config.json").read_text())["model"]
        config = genai.Config(str(model.parent))
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        # The other engines go on after the end of a text. GenAI ends with a token that no text here has.
        settings = {"decoder": {"session_options": options}, "eos_token_id": written["vocab_size"] - 1}
        config.overlay(json.dumps({"model": settings}))
        if plugin:
            import kvscatter.onnxruntime_genai

            kvscatter.onnxruntime_genai.use(config)
        self._model = genai.Model(config)
        parameters = genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=capacity, do_sample=False)
        self._generator = genai.Generator(self._model, parameters)
        self._sizes, self._capacity = written["decoder"], capacity

    def reset(self) -> None:
        self._generator.rewind_to(0)

    def feed(self, tokens: list[int]) -> int:
        self._generator.append_tokens(tokens)
        return self._choose()

    def step(self, token: int) -> int:
        # The generator feeds the token that it has chosen.
        return self._choose()

    def _choose(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])

    def caches(self) -> int:
        sizes = self._sizes
        row = sizes["num_key_value_heads"] * sizes["head_size"] * 4
        return 2 * sizes["num_hidden_layers"] * row * self._capacity


class Transformers(Engine):
    """transformers, with a cache that grows or a static one."""

    def __init__(self, model: Path, threads: int, capacity: int, chunk: int, static: bool = False) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch, self._transformers = torch, transformers
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._static, self._capacity = static, capacity
        self.reset()

    def reset(self) -> None:
        config = self._model.config
        if self._static:
            self._cache = self._transformers.StaticCache(config=config, max_cache_len=self._capacity)
        else:
            self._cache = self._transformers.DynamicCache(config=config)

    def feed(self, tokens: list[int]) -> int:
        with self._torch.inference_mode():
            ids = self._torch.tensor([tokens])
            result = self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            return int(result.logits[0, -1].argmax())

    def caches(self) -> int:
        return sum(part.nbytes for layer in self._cache.layers for part in (layer.keys, layer.values))


class Llama(Engine):
    """llama.cpp with its default settings, a number of threads and room for as many tokens."""

    def __init__(self, model: Path, threads: int, capacity: int, chunk: int) -> None:
        import ctypes

        import llama_cpp
        import numpy as np

        lines: list[str] = []

        @llama_cpp.llama_log_callback
        def log(_level: int, text: bytes, _data: Any) -> None:
            lines.append(text.decode(errors="replace"))

        llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
        self._log, self._lines, self._arrays = log, lines, np.ctypeslib
        threaded = {"n_threads": threads, "n_threads_batch": threads}
        # The wrapper would set its own callback if it were not verbose.
        self._llama = llama_cpp.Llama(str(model), n_ctx=capacity, n_batch=chunk, verbose=True, **threaded)

    def reset(self) -> None:
        self._llama.reset()

    def feed(self, tokens: list[int]) -> int:
        self._llama.eval(tokens)
        logits = self._llama._ctx.get_logits()
        return int(self._arrays.as_array(logits, shape=(self._llama.n_vocab(),)).argmax())

    def caches(self) -> int:
        # llama.cpp has a cache for layers with a window and another for the others.
        sizes = re.findall(r"KV buffer size = +([\d.]+) MiB", "".join(self._lines))
        return round(sum(map(float, sizes)) * (1 << 20))


ENGINES = {
    "kvscatter": Kvscatter,
    "genai": GenAI,
    "genai-kvscatter": lambda *given: GenAI(*given, plugin=True),
    "transformers": Transformers,
    "transformers-static": lambda *given: Transformers(*given, static=True),
    "llama": Llama,
}


def answer(engine: Engine, request: str, next_token: int) -> tuple[str, int]:
    """Returns the answer to a request, and the most likely next token."""
    verb, _, argument = request.partition(" ")
    if verb == "reset":
        engine.reset()
        return "done", next_token
    if verb == "caches":
        return str(engine.caches()), next_token
    if verb == "feed":
        began = time.perf_counter()
        next_token = engine.feed([int(token) for token in argument.split(",")])
        return f"{time.perf_counter() - began} {next_token}", next_token
    if verb != "decode":
        raise SystemExit(f"no such request: {verb}")
    seconds, tokens = [], []
    for _ in range(int(argument)):
        began = time.perf_counter()
        next_token = engine.step(next_token)
        seconds.append(str(time.perf_counter() - began))
        tokens.append(str(next_token))
    return f"{','.join(seconds)} {','.join(tokens)}", next_token


def main() -> None:
    """Answers requests until the input ends."""
    # Packages print to the standard output, so the answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, model, *numbers = sys.argv[1:]
    engine = ENGINES[name](Path(model), *map(int, numbers))
    next_token = 0
    for line in sys.stdin:
        text, next_token = answer(engine, line.strip(), next_token)
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main()
