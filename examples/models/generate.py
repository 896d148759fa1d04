"""Runs a decoder that `kvscatter convert` made, with two prompts of different lengths and greedy decoding.

python generate.py target/static.onnx
"""

import sys

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
metadata = session.get_modelmeta().custom_metadata_map
slots = int(metadata.get("kvscatter.most_tokens", metadata["kvscatter.max_seq"]))
inputs = {value.name: value for value in session.get_inputs()}

prompts = [[11, 42, 7, 99, 23, 64], [5, 17]]
batch = len(prompts)

# The past and the present of each cache share one buffer. It begins as zeros, because it must be finite. NumPy has no
# bfloat16, so its bits are numbers of another type.
TYPES = {
    "tensor(float)": (np.float32, 1),
    "tensor(float16)": (np.float16, 10),
    "tensor(bfloat16)": (np.uint16, 16),
    "tensor(int8)": (np.int8, 3),
}
binding = session.io_binding()
for pair in metadata["kvscatter.caches"].split("; "):
    past, present = pair.split(" -> ")
    _, heads, capacity, size = inputs[past].shape
    dtype, onnx_type = TYPES[inputs[past].type]
    zeros = np.zeros((batch, heads, capacity, size), dtype)
    cache = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(zeros, onnx_type)
    binding.bind_ortvalue_input(past, cache)
    binding.bind_ortvalue_output(present, cache)

mask = inputs.get("attention_mask")  # a model without linear caches may have none
columns = np.arange(mask.shape[1] if mask else 0)
read = np.zeros(batch, np.int64)  # tokens that each sample has in the cache


def step(tokens: list[list[int]]) -> list[int]:
    """Feeds the next tokens of each sample, padded on the right, and returns the likeliest next token."""
    global read
    counts = np.array([len(each) for each in tokens])
    width = max(counts)
    if (read + width > slots).any():
        raise SystemExit(f"{read.max()} + {width} tokens are more than the {slots} that the model takes")
    feeds = {
        "input_ids": np.array([each + [0] * (width - len(each)) for each in tokens], np.int64),
        "position_ids": read[:, None] + np.arange(width),
        "attention_mask": (columns < (read + counts)[:, None]).astype(np.int64),
        "write_indices": read,
        "nonpad_kv_seqlen": read + width,
    }
    for name in feeds.keys() & inputs.keys():
        binding.bind_cpu_input(name, feeds[name])
    binding.bind_output("logits")  # Its shape differs between steps.
    session.run_with_iobinding(binding)
    logits = binding.get_outputs()[-1].numpy()
    read = read + counts  # a padded row is overwritten by the sample's next token
    return [int(logits[sample, count - 1].argmax()) for sample, count in enumerate(counts)]


generated = [[token] for token in step(prompts)]
for _ in range(7):
    for sample, token in enumerate(step([each[-1:] for each in generated])):
        generated[sample].append(token)
for prompt, tokens in zip(prompts, generated, strict=True):
    print(*prompt, "→", *tokens)
