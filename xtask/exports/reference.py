"""Makes checkpoints and their reference: the tokens that transformers itself generates in float32.

    python reference.py ROOT --environment NAME [--only FAMILY] [--reuse]

Writes ROOT/checkpoints/FAMILY with `reference.json` for the families of this environment. Of several seeds it takes the
one whose likeliest token leads the second by the most, because a near tie could turn out differently in another engine.
Encoder-decoders continue their start token for three inputs of the encoder, which `inputs.py` writes there too.
"""

import argparse
import json
import sys
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoint import make_model, save
from families import Family, families
from texts import Arrays, make_inputs
from transformers import GenerationMixin, PreTrainedModel

PROMPTS = [1, 7, 20]
STEPS = 200
# The encoder reads the input in an encoder-decoder, so that its texts are shorter.
ENCODER_STEPS = 100
SEEDS = range(1, 6)
# Many seeds of encoder-decoders repeat one token.
ENCODER_SEEDS = range(1, 21)
# A lead above this needs no other seed. Engines differ by about 1e-5.
ENOUGH = 5e-4
# A text with fewer tokens shows little of an encoder-decoder.
FEWEST = 4


def prompts(vocabulary: int) -> list[list[int]]:
    """Returns the prompts. None contains the special tokens 0, 1 and 2."""
    random = torch.Generator().manual_seed(11)
    return [torch.randint(3, vocabulary, (length,), generator=random).tolist() for length in PROMPTS]


def greedy(model: PreTrainedModel, prompt: list[int], inputs: Arrays | None) -> tuple[list[int], float]:
    """Returns the greedy tokens after a prompt, and the smallest lead of a token over the second."""
    ids = torch.tensor([prompt])
    if inputs is None:
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    else:
        given = {name: torch.from_numpy(array) for name, array in inputs.items()} | {"decoder_input_ids": ids}
    # Without an end token, every text has all of its steps.
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    # Whisper has a method `generate` that adds times and languages.
    result = GenerationMixin.generate(
        model,
        **given,
        do_sample=False,
        max_new_tokens=STEPS if inputs is None else ENCODER_STEPS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(result.logits).topk(2).values
    return result.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).min().item()


def reference(model: PreTrainedModel, inputs: list[Arrays]) -> dict[str, Any]:
    """Returns the prompts, their tokens and the smallest lead."""
    given = prompts(model.config.vocab_size)
    if inputs:
        given = [[model.config.decoder_start_token_id] for _ in inputs]
    with torch.no_grad():
        answers = [greedy(model, *each) for each in zip_longest(given, inputs)]
    tokens = [each for each, _ in answers]
    distinct = [len(set(each)) for each in tokens]
    return {
        "prompts": given,
        "tokens": tokens,
        "lead": min(lead for _, lead in answers),
        "distinct": distinct,
    }


def make(family: Family, folder: Path) -> dict[str, Any]:
    """Writes the checkpoint of the best seed and its reference."""
    inputs = make_inputs(family, folder) if family.has_encoder else []
    best: dict[str, Any] = {"lead": -1.0}
    for seed in ENCODER_SEEDS if inputs else SEEDS:
        model = make_model(family, seed)
        found = reference(model, inputs)
        says_little = bool(inputs) and min(found["distinct"]) < FEWEST
        if found["lead"] > best["lead"] and not says_little:
            best = found | {"seed": seed}
        if best["lead"] > ENOUGH:
            break
    if "seed" not in best:
        raise ValueError(f"every seed gives a text of fewer than {FEWEST} distinct tokens")
    best["transformers"] = transformers.__version__
    save(make_model(family, best["seed"]), folder)
    (folder / "reference.json").write_text(json.dumps(best))
    return best


def main() -> None:
    """Makes the checkpoints that the arguments ask for."""
    options = argparse.ArgumentParser()
    options.add_argument("root", type=Path)
    options.add_argument("--environment", required=True)
    options.add_argument("--only", action="append")
    options.add_argument("--reuse", action="store_true")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for family in families(given.only):
        folder = given.root / "checkpoints" / family.name
        is_made = given.reuse and (folder / "reference.json").exists()
        if family.environment != given.environment or is_made:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        try:
            made = make(family, folder)
            line = f"lead {made['lead']:.1e} with seed {made['seed']}, {made['distinct']} distinct tokens"
        except Exception as error:
            line = f"failed: {type(error).__name__}: {error}"
        print(f"{family.name}: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
