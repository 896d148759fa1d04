"""A decoder with a static cache, which has two layers of Llama with random weights, as mobius exports it."""

import pathlib

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

MODEL = pathlib.Path(__file__).parents[4] / "testdata" / "mobius-llama-static" / "model.onnx"
SLOTS, WIDTH, VOCABULARY = 64, 32, 256


def with_mask() -> bytes:
    """Returns the model with an explicit mask, because Attention of 1.24 ignores nonpad_kv_seqlen."""
    model = onnx.load(MODEL)
    names = [value.name for value in model.graph.input]
    del model.graph.input[names.index("nonpad_kv_seqlen")]
    mask = helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, ["batch", 1, "sequence_len", SLOTS])
    model.graph.input.append(mask)
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.input[3] = mask.name
            del node.input[4:]
            for attribute in node.attribute:
                if attribute.name == "is_causal":
                    attribute.i = 0
    return model.SerializeToString()


def generate(session: ort.InferenceSession, lengths: list[int], steps: int, in_place: bool = True, fill=0.0):
    """Returns greedy tokens [batch, steps] and their logits, after random prompts of these lengths.

    The caches contain ``fill`` before the first step."""
    batch = len(lengths)
    tokens = np.random.default_rng(24).integers(0, VOCABULARY, (batch, max(lengths)))
    inputs = [value.name for value in session.get_inputs()]
    caches = {
        name: ort.OrtValue.ortvalue_from_numpy(np.full((batch, SLOTS, WIDTH), fill, np.float32))
        for name in inputs
        if "cache" in name
    }
    start, real = np.zeros(batch, np.int64), np.array(lengths)
    chosen, logits = [], []
    for _ in range(steps):
        positions = start[:, None] + np.arange(tokens.shape[1])
        feed = {
            "input_ids": tokens,
            "position_ids": positions,
            "write_indices": start,
            "nonpad_kv_seqlen": start + tokens.shape[1],
            "attn_mask": np.arange(SLOTS) <= positions[:, None, :, None],
        }
        binding = session.io_binding()
        for name, values in feed.items():
            if name in inputs:
                binding.bind_cpu_input(name, values)
        for name, cache in caches.items():
            binding.bind_ortvalue_input(name, cache)
        binding.bind_output("logits")
        for name, cache in caches.items():
            if in_place:
                binding.bind_ortvalue_output(f"updated_{name}", cache)
            else:
                binding.bind_output(f"updated_{name}")
        session.run_with_iobinding(binding)
        made, *updated = binding.get_outputs()
        if in_place:
            addresses = [cache.data_ptr() for cache in caches.values()]
            assert [output.data_ptr() for output in updated] == addresses
        if not in_place:
            caches = dict(zip(caches, updated, strict=True))

        logits.append(made.numpy()[np.arange(batch), real - 1])
        chosen.append(logits[-1].argmax(-1))
        tokens, start, real = chosen[-1][:, None], start + real, np.ones_like(real)
    return np.stack(chosen, 1), np.stack(logits, 1)
