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


def test_every_tensor_scatter_is_ours():
    nodes = assignment(plugin(MODEL))
    assert nodes[PROVIDER] == ["TensorScatter"] * 4
    assert "TensorScatter" not in nodes["CPUExecutionProvider"]


@pytest.mark.needs_builtin
@pytest.mark.parametrize("in_place", [True, False])
def test_tokens_and_logits_are_those_without_the_plugin(in_place):
    tokens, logits = generate(plugin(MODEL), PROMPTS, STEPS, in_place)
    others_tokens, others_logits = generate(builtin(MODEL), PROMPTS, STEPS, in_place)
    assert tokens.tolist() == others_tokens.tolist() == expected()
    assert logits.tobytes() == others_logits.tobytes()
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("in_place", [True, False])
def test_tokens_are_the_same_on_versions_without_a_built_in_kernel(in_place):
    session = plugin(with_mask())
    assert assignment(session)[PROVIDER] == ["TensorScatter"] * 4
    tokens, _ = generate(session, PROMPTS, STEPS, in_place)
    assert tokens.tolist() == expected()


if __name__ == "__main__":
    assert HAS_BUILTIN
    EXPECTED.write_text(json.dumps(generate(builtin(MODEL), PROMPTS, STEPS)[0].tolist()) + "\n")
