"""Compares the beams of `examples/models/beam_search.py` with those of transformers, for a decoder with the same
weights."""

from __future__ import annotations

import runpy
from collections.abc import Iterator

import onnx
import pytest
import torch
from onnx import numpy_helper
from transformers import LlamaConfig, LlamaForCausalLM

from kvscatter import KvSession
from support import ROOT

MODEL = ROOT / "testdata/mobius-llama-static/model.onnx"
beam_search = runpy.run_path(str(ROOT / "examples/models/beam_search.py"))["beam_search"]

PROMPTS = [[5, 9, 200, 17, 33], [101, 7], [64]]


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """Returns the model that was exported, with the weights of the export."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    weights = {}
    for initializer in onnx.load(MODEL).graph.initializer:
        values = torch.tensor(numpy_helper.to_array(initializer))
        if initializer.name.endswith(".weight_t"):
            weights[initializer.name.removesuffix("_t")] = values.T
        elif initializer.name.endswith(".weight"):
            weights[initializer.name] = values
    llama = LlamaForCausalLM(config)
    llama.load_state_dict(weights)
    return llama.eval()


@pytest.fixture(scope="module")
def session() -> Iterator[KvSession]:
    with KvSession(MODEL, batch=8, threads=1) as opened:
        yield opened


def reference(
    llama: LlamaForCausalLM, prompt: list[int], beams: int, length: int, eos: list[int]
) -> list[tuple[float, list[int]]]:
    result = llama.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=length,
        num_beams=beams,
        num_return_sequences=beams,
        do_sample=False,
        early_stopping="never",
        length_penalty=0.0,
        eos_token_id=eos or None,
        pad_token_id=-1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = result.sequences[:, len(prompt) :].tolist()
    tokens = [[token for token in row if token != -1] for row in rows]
    return list(zip(result.sequences_scores.tolist(), tokens, strict=True))


def check(session: KvSession, llama: LlamaForCausalLM, case: tuple[list[int], int, int, list[int]]) -> int:
    """Compares the tokens and scores of all beams. Returns the number of beams that ended early."""
    got, want = beam_search(session, *case), reference(llama, *case)
    assert [tokens for _, tokens in got] == [tokens for _, tokens in want]
    assert [score for score, _ in got] == pytest.approx([score for score, _ in want], abs=1e-3)
    assert session.samples == []
    return sum(len(tokens) < case[2] for _, tokens in got)


def test_the_weights_are_those_of_the_export(session: KvSession, llama: LlamaForCausalLM) -> None:
    sample = session.add()
    logits = session.step({sample: PROMPTS[0]}).last(sample)
    session.remove(sample)
    with torch.no_grad():
        want = llama(torch.tensor([PROMPTS[0]])).logits[0, -1]
    torch.testing.assert_close(torch.tensor(logits), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("beams", [2, 3, 4, 8])
def test_beams_are_those_of_transformers(
    session: KvSession, llama: LlamaForCausalLM, prompt: list[int], beams: int
) -> None:
    assert check(session, llama, (prompt, beams, 20, [])) == 0


def test_beams_end_as_in_transformers(session: KvSession, llama: LlamaForCausalLM) -> None:
    ended = 0
    for prompt in PROMPTS:
        _, likely = beam_search(session, prompt, 4, 12, [])[0]
        for eos in ([likely[0]], [likely[3]], likely[-1:], likely[4:6], likely[:4]):
            for beams in (2, 4):
                ended += check(session, llama, (prompt, beams, 12, sorted(set(eos))))
    assert ended > 20, ended
