"""Compares `examples/models/beam_search.py` with searches that copy no sample."""

from __future__ import annotations

import runpy
import subprocess
import sys

import numpy as np
import pytest

from kvscatter import KvSession
from support import ROOT

MODEL = ROOT / "testdata/mobius-llama-static/model.onnx"
EXAMPLE = ROOT / "examples/models/beam_search.py"
PROMPT = [5, 9, 200, 17, 33]
example = runpy.run_path(str(EXAMPLE))


def uncopied(prompt: list[int], beams: int, length: int) -> list[tuple[float, list[int]]]:
    """Returns the beams of a search that feeds every beam from its start at every step."""
    found: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(length):
        candidates = []
        for score, tokens in found:
            with KvSession(MODEL, threads=1) as session:
                sample = session.add()
                logits = session.step({sample: [*prompt, *tokens]}).last(sample)
            scores = score + example["log_softmax"](logits)
            candidates += [(float(scores[token]), [*tokens, token]) for token in range(len(scores))]
        found = sorted(candidates, key=lambda candidate: -candidate[0])[:beams]
    return found


@pytest.mark.parametrize("beams", [1, 3])
def test_a_beam_search_finds_what_it_finds_without_copies(beams: int) -> None:
    with KvSession(MODEL, batch=beams, threads=1) as session:
        got = example["beam_search"](session, PROMPT, beams, 6)
        assert session.samples == []
    want = uncopied(PROMPT, beams, 6)
    assert [tokens for _, tokens in got] == [tokens for _, tokens in want]
    assert [score for score, _ in got] == pytest.approx([score for score, _ in want], abs=1e-3)


def test_a_beam_ends_at_a_token_of_eos() -> None:
    with KvSession(MODEL, batch=2, threads=1) as session:
        (_, best), _ = example["beam_search"](session, PROMPT, 2, 6)
        ends = example["beam_search"](session, PROMPT, 2, 6, eos=[best[2]])
        assert session.samples == []
    assert best[:3] in [tokens for _, tokens in ends]
    assert all(best[2] not in tokens[:-1] for _, tokens in ends)


def test_parallel_samples_share_a_prompt() -> None:
    with KvSession(MODEL, batch=3, threads=1) as session:
        # At this temperature only the likeliest token has a chance.
        cold = example["sample_in_parallel"](session, PROMPT, 3, 6, temperature=1e-4, seed=0)
        warm = example["sample_in_parallel"](session, PROMPT, 3, 6, temperature=1.0, seed=0)
        again = example["sample_in_parallel"](session, PROMPT, 3, 6, temperature=1.0, seed=0)
        assert session.samples == []
        assert cold == [example["beam_search"](session, PROMPT, 1, 6)[0][1]] * 3
    assert warm == again
    assert len(set(map(tuple, warm))) == 3


def run(*options: object) -> list[str]:
    command = [sys.executable, str(EXAMPLE), *map(str, options)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_command_line() -> None:
    assert any("--beams" in line for line in run("--help"))
    lines = run(MODEL, *PROMPT, "--beams", 3, "--tokens", 4)
    scores = [float(line.partition(":")[0]) for line in lines]
    assert (len(lines), scores) == (3, sorted(scores, reverse=True))
    assert all(len(line.split()) == 1 + 4 for line in lines)
    lines = run(MODEL, *PROMPT, "--sample", 2, "--tokens", 5, "--temperature", 0.8)
    assert np.array([line.split() for line in lines], int).shape == (2, 5)
