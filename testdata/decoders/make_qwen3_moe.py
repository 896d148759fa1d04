"""Makes `optimum-0.1-qwen3-moe`, with optimum-onnx 0.1, transformers 4.57 and PyTorch 2.15.

python make_qwen3_moe.py FOLDER
"""

import sys

import torch
from optimum.exporters.onnx import onnx_export_from_model
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

config = Qwen3MoeConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    norm_topk_prob=True,
    tie_word_embeddings=False,
)
torch.manual_seed(7)
model = Qwen3MoeForCausalLM(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() >= 2:
            weight.normal_(0, 0.2)
onnx_export_from_model(model, sys.argv[1], task="text-generation-with-past", opset=18)
