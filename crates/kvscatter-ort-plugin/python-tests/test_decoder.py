"""A decoder generates the same tokens with and without the plugin, in place and functional, everywhere."""

import json
import pathlib

import numpy as np
import pytest

from support.decoder import MODEL, generate, with_mask
from support.sessions import HAS_BUILTIN, PROVIDER, assignment, builtin, plugin

# The tokens of the built-in kernel of ONNX Runtime 1.31.1. `python test_decoder.py` writes them again.
EXPECTED = pathlib.Path(__file__).with_name("decoder_tokens.json")
PROMPTS, STEPS = [5, 3, 4], 50


def expected() -> list[list[int]]:
    return json.loads(EXPECTED.read_text())


def test_every_cache_operator_is_ours():
    nodes = assignment(plugin(MODEL))
    assert sorted(nodes[PROVIDER]) == ["Attention"] * 2 + ["TensorScatter"] * 4
    others = nodes["CPUExecutionProvider"]
    # A copy between providers would be a node as well.
    assert not {"Attention", "TensorScatter", "MemcpyToHost", "MemcpyFromHost"} & set(others)


def test_attention_can_be_left_to_others():
    nodes = assignment(plugin(MODEL, attention="off"))
    assert nodes[PROVIDER] == ["TensorScatter"] * 4
    assert nodes["CPUExecutionProvider"].count("Attention") == 2


@pytest.mark.needs_builtin
@pytest.mark.parametrize("in_place", [True, False])
def test_tokens_and_logits_are_those_without_the_plugin(in_place):
    """With the built-in Attention, the logits are the same bit for bit. With ours, sums are in another order."""
    others_tokens, others_logits = generate(builtin(MODEL), PROMPTS, STEPS, in_place)
    tokens, logits = generate(plugin(MODEL, attention="off"), PROMPTS, STEPS, in_place)
    assert tokens.tolist() == others_tokens.tolist() == expected()
    assert logits.tobytes() == others_logits.tobytes()
    assert np.isfinite(logits).all()
    tokens, logits = generate(plugin(MODEL), PROMPTS, STEPS, in_place)
    assert tokens.tolist() == expected()
    np.testing.assert_allclose(logits, others_logits, atol=1e-5)


@pytest.mark.parametrize("in_place", [True, False])
def test_tokens_are_the_same_on_versions_without_a_built_in_kernel(in_place):
    """The Attention of 1.24 ignores nonpad_kv_seqlen, and ours does not."""
    tokens, _ = generate(plugin(MODEL), PROMPTS, STEPS, in_place)
    assert tokens.tolist() == expected()
    for attention in ("on", "off"):
        tokens, _ = generate(plugin(with_mask(), attention=attention), PROMPTS, STEPS, in_place)
        assert tokens.tolist() == expected()


@pytest.mark.parametrize("threads", [1, 3])
def test_slots_after_the_lengths_do_not_matter(threads):
    """NaN in slots that no token has been written to has no influence, and the caches stay where they are."""
    tokens, logits = generate(plugin(MODEL, threads), PROMPTS, STEPS)
    again, with_nan = generate(plugin(MODEL, threads), PROMPTS, STEPS, fill=np.nan)
    assert tokens.tolist() == again.tolist() == expected()
    assert logits.tobytes() == with_nan.tobytes()


if __name__ == "__main__":
    assert HAS_BUILTIN
    EXPECTED.write_text(json.dumps(generate(builtin(MODEL), PROMPTS, STEPS)[0].tolist()) + "\n")
