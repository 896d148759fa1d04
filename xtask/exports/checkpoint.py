"""Makes checkpoints with random weights, from which every exporter exports."""

import re
from pathlib import Path
from typing import Any

import torch
from families import Family
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

# Weights with this deviation make the logits of neighbouring tokens differ. With the usual 0.02 they hardly do.
DEVIATION = 0.2
# Logits of tied embeddings would otherwise repeat the token that was read.
TIED_DEVIATION = 0.05
# Norms and biases vary too, so that an export that drops them is noticed.
SMALL_DEVIATION = 0.1
# Cross attention gives every token nearly the same result. Sharper attention keeps the texts from one repeated token.
SHARPER = 3
# The width of most encoder-decoders. The weights of wider ones are smaller and less sharp, because their longer sums
# would amplify rounding until engines choose other tokens.
WIDTH = 64
SHARP = re.compile(r"(q_proj|k_proj|\.q|\.k|relative_attention_bias)\.weight$")


def make_model(family: Family, seed: int) -> PreTrainedModel:
    """Returns the family's model in float32 with random weights."""
    config = AutoConfig.for_model(family.model_type, **family.settings)
    wider = family.settings.get("d_model", WIDTH) / WIDTH
    deviation = DEVIATION / wider**0.5
    torch.manual_seed(seed)
    model = _models(family, config).from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Sinusoidal positions are made again when a checkpoint is loaded.
            if not weight.requires_grad:
                continue
            if weight.dim() >= 2:
                is_sharp = family.has_encoder and SHARP.search(name)
                weight.normal_(0, deviation * SHARPER / wider if is_sharp else deviation)
            else:
                weight.add_(torch.randn_like(weight) * SMALL_DEVIATION)
        if config.tie_word_embeddings:
            model.get_input_embeddings().weight.normal_(0, TIED_DEVIATION)
    model.config.architectures = [type(model).__name__]
    return model


def _models(family: Family, config: PretrainedConfig) -> Any:
    """Returns the class of transformers that makes the family's model."""
    if not family.has_encoder:
        return AutoModelForCausalLM
    is_speech = type(config) in AutoModelForSpeechSeq2Seq._model_mapping
    return AutoModelForSpeechSeq2Seq if is_speech else AutoModelForSeq2SeqLM


def save(model: PreTrainedModel, folder: Path) -> None:
    """Writes the checkpoint with a tokenizer, which some exporters insist on."""
    # Checkpoints with other settings of generation, such as a list of end tokens, are not the subject.
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.save_pretrained(folder)
    vocabulary = {f"t{number}": number for number in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE(vocabulary, [])),
        pad_token="t0",
        bos_token="t1",
        eos_token="t2",
    )
    tokenizer.save_pretrained(folder)
