"""Models of ONNX Runtime GenAI generate the same tokens with the plugin as without it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime_genai
import pytest

import kvscatter.onnxruntime_genai

# The largest difference of a logit. Both orders of a sum in float32 are right, and float16 rounds more.
TOLERANCE = {"float16": 2e-2}
USUAL = 1e-4


def prompt(count: int, seed: int = 0) -> np.ndarray:
    """Returns random tokens, none of which is the padding."""
    return np.random.default_rng(seed).integers(3, models.VOCABULARY, count).astype(np.int32)


class Run:
    """A generator that records the logits of each step."""

    def __init__(self, model: Any, length: int = models.CONTEXT, **search: Any) -> None:
        parameters = onnxruntime_genai.GeneratorParams(model)
        # No text ends before its length.
        search = {"max_length": length, "min_length": length, "do_sample": False, **search}
        parameters.set_search_options(**search)
        self._rows, self._has_beams = search.get("batch_size", 1), "num_beams" in search
        self._generator = onnxruntime_genai.Generator(model, parameters)
        self.logits: list[np.ndarray] = []

    def append(self, tokens: np.ndarray) -> "Run":
        """Adds tokens to the cache."""
        self._generator.append_tokens(tokens)
        return self

    def generate(self, count: int) -> "Run":
        """Chooses tokens, and adds each to the cache."""
        for _ in range(count):
            self._generator.generate_next_token()
            # GenAI 0.13 aborts if it is asked for the logits of beams.
            if not self._has_beams:
                self.logits.append(np.array(self._generator.get_logits()))
        return self

    def rewind(self, length: int) -> "Run":
        """Removes the last tokens."""
        self._generator.rewind_to(length)
        return self

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each row."""
        return [self._generator.get_sequence(row).tolist() for row in range(self._rows)]


def padded(prompts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns prompts of different lengths as one array."""
    longest = max(map(len, prompts))
    return np.array([np.pad(each, (0, longest - len(each))) for each in prompts])


def greedy(model: Any) -> Run:
    return Run(model).append(prompt(20)).generate(30)


def long_prompt(model: Any) -> Run:
    return Run(model).append(prompt(100)).generate(20)


def prompt_in_chunks(model: Any) -> Run:
    return Run(model, chunk_size=8).append(prompt(30)).generate(10)


def growing_caches(model: Any) -> Run:
    return Run(model, past_present_share_buffer=False).append(prompt(20)).generate(20)


def ragged_batch(model: Any) -> Run:
    prompts = [prompt(count, seed) for seed, count in enumerate((3, 17, 9, 1))]
    return Run(model, batch_size=4).append(padded(prompts)).generate(20)


def beams(model: Any) -> Run:
    return Run(model, length=32, num_beams=3).append(prompt(12)).generate(20)


def several_turns(model: Any) -> Run:
    run = Run(model).append(prompt(9)).generate(5).append(prompt(6, 1)).generate(5)
    return run.append(prompt(11, 2)).generate(5)


def rewound(model: Any) -> Run:
    run = Run(model).append(prompt(20)).generate(8).rewind(23).generate(3).rewind(6)
    return run.append(prompt(3, 1)).generate(5).rewind(0).append(prompt(4, 2)).generate(5)


SCENARIOS = [
    greedy,
    long_prompt,
    prompt_in_chunks,
    growing_caches,
    ragged_batch,
    beams,
    several_turns,
    rewound,
]


@pytest.fixture(scope="module", params=models.VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, float]:
    """Returns a model without and with the plugin, and the largest difference of a logit."""
    folder = models.write(request.param, tmp_path_factory.mktemp("genai") / "model")
    plain, ours = (onnxruntime_genai.Config(str(folder)) for _ in range(2))
    kvscatter.onnxruntime_genai.use(ours)
    tolerance = TOLERANCE.get(request.param, USUAL)
    return onnxruntime_genai.Model(plain), onnxruntime_genai.Model(ours), tolerance


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_tokens_and_logits_are_equal(pair: tuple[Any, Any, float], scenario: Callable[[Any], Run]) -> None:
    *both, tolerance = pair
    plain, ours = map(scenario, both)
    np.testing.assert_allclose(ours.logits, plain.logits, rtol=0, atol=tolerance)
    assert ours.tokens == plain.tokens


@pytest.mark.parametrize("variant", models.VARIANTS)
def test_the_plugin_runs_attention(variant: str, tmp_path: Path) -> None:
    config = onnxruntime_genai.Config(str(models.write(variant, tmp_path / "model")))
    kvscatter.onnxruntime_genai.use(config)
    options = {"enable_profiling": str(tmp_path / "profile")}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = onnxruntime_genai.Model(config)
    greedy(model)
    # A session writes its profile when it ends.
    del model, config
    assert models.providers(tmp_path) == {"KvscatterExecutionProvider"}
