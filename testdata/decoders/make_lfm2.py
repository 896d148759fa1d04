"""Makes a decoder of LFM2 with the operators, inputs and outputs of its public ONNX files, from transformers' weights.

A layer of convolutions joins its state with the new columns, convolves them without padding, and returns the last
columns. The other layer is GroupQueryAttention after RotaryEmbedding. Prints the tokens that transformers generates.

python make_lfm2.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from transformers import Lfm2Config, Lfm2ForCausalLM

HIDDEN, HEADS, KEY_HEADS, TOKENS, COLUMNS, POSITIONS = 32, 2, 1, 64, 3, 64
HEAD = HIDDEN // HEADS
PROMPTS = [[5], [7, 11, 13, 17, 19], [40, 3, 40, 3, 40, 3, 9]]
GENERATED = 24


class Graph:
    """A graph under construction."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self.nodes, self.initializers = weights, [], {}

    def node(
        self, op: str, *inputs: str, outputs: list[str] | None = None, ms: bool = False, **attributes: object
    ) -> str:
        """Adds a node and returns its first output."""
        outputs = outputs or [f"{op}_{len(self.nodes)}"]
        domain = "com.microsoft" if ms else ""
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def array(self, name: str, values: np.ndarray) -> str:
        """Adds an initializer and returns its name."""
        self.initializers[name] = numpy_helper.from_array(values, name)
        return name

    def ints(self, *values: int) -> str:
        """Adds integers."""
        return self.array("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def weight(self, name: str, *, turned: bool = False) -> str:
        """Adds a weight of the model."""
        values = self.weights[f"model.{name}.weight"].numpy()
        return self.array(name, np.ascontiguousarray(values.T) if turned else values)

    def linear(self, x: str, name: str) -> str:
        """Adds a product with a weight."""
        return self.node("MatMul", x, self.weight(name, turned=True))

    def norm(self, x: str, name: str) -> str:
        """Adds a normalisation."""
        weight = self.weight(name)
        return self.node("SimplifiedLayerNormalization", x, weight, epsilon=1e-5, axis=-1, stash_type=1)

    def convolution(self, x: str, layer: int) -> str:
        """Adds a layer of convolutions."""
        part = f"layers.{layer}.conv"
        projected = self.node("Transpose", self.linear(x, f"{part}.in_proj"), perm=[0, 2, 1])
        gates = [f"gates.{layer}.{index}" for index in range(3)]
        self.node("Split", projected, self.ints(HIDDEN, HIDDEN, HIDDEN), outputs=gates, axis=1)
        new = self.node("Mul", gates[0], gates[2])
        joined = self.node("Concat", f"past_conv.{layer}", new, axis=2)
        convolved = self.node(
            "Conv", joined, self.weight(f"{part}.conv"), group=HIDDEN, kernel_shape=[COLUMNS]
        )
        length = self.node("Gather", self.node("Shape", new), self.array("two", np.array(2, np.int64)))
        length = self.node("Mul", length, self.array("minus_one", np.array(-1, np.int64)))
        start, end = self.node("Unsqueeze", length, self.ints(0)), self.ints(2**63 - 1)
        convolved = self.node("Slice", convolved, start, end, self.ints(2))
        self.node("Slice", joined, self.ints(-COLUMNS), end, self.ints(2), outputs=[f"present_conv.{layer}"])
        mixed = self.node("Transpose", self.node("Mul", gates[1], convolved), perm=[0, 2, 1])
        return self.linear(mixed, f"{part}.out_proj")

    def attention(self, x: str, layer: int) -> str:
        """Adds a layer of attention."""
        part = f"layers.{layer}.self_attn"
        queries, keys, values = (self.linear(x, f"{part}.{name}_proj") for name in "qkv")
        rotated = []
        for projected, name, width in ((queries, "q", HIDDEN), (keys, "k", HEAD * KEY_HEADS)):
            by_head = self.node("Reshape", projected, self.ints(0, -1, HEAD))
            flat = self.node(
                "Reshape", self.norm(by_head, f"{part}.{name}_layernorm"), self.ints(0, -1, width)
            )
            tables = ("position_ids", "cos", "sin")
            rotated.append(
                self.node("RotaryEmbedding", flat, *tables, ms=True, num_heads=0, rotary_embedding_dim=0)
            )
        pasts = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        presents = [f"present.{layer}.{part}" for part in ("key", "value")]
        heads = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "scale": HEAD**-0.5}
        inputs = (*rotated, values, *pasts, "lengths", "total")
        attended = self.node(
            "GroupQueryAttention", *inputs, outputs=[f"attended.{layer}", *presents], ms=True, **heads
        )
        return self.linear(attended, f"{part}.out_proj")

    def feed_forward(self, x: str, layer: int) -> str:
        """Adds a feed-forward layer."""
        part = f"layers.{layer}.feed_forward"
        gate = self.linear(x, f"{part}.w1")
        gate = self.node("Mul", gate, self.node("Sigmoid", gate))
        return self.linear(self.node("Mul", gate, self.linear(x, f"{part}.w3")), f"{part}.w2")


def build(model: Lfm2ForCausalLM) -> onnx.ModelProto:
    """Builds the decoder."""
    graph = Graph({name: weight.detach() for name, weight in model.state_dict().items()})
    angles = np.outer(np.arange(POSITIONS), model.config.rope_theta ** -(np.arange(0, HEAD, 2) / HEAD))
    graph.array("cos", np.cos(angles).astype(np.float32))
    graph.array("sin", np.sin(angles).astype(np.float32))
    lengths = graph.node(
        "Sub", graph.node("ReduceSum", "attention_mask", graph.ints(1), keepdims=0), graph.ints(1)
    )
    graph.node("Cast", lengths, outputs=["lengths"], to=TensorProto.INT32)
    total = graph.node(
        "Gather", graph.node("Shape", "attention_mask"), graph.array("one", np.array(1, np.int64))
    )
    graph.node("Cast", total, outputs=["total"], to=TensorProto.INT32)
    x = graph.node("Gather", graph.weight("embed_tokens"), "input_ids")
    states, caches = [], []
    for layer, kind in enumerate(model.config.layer_types):
        normed = graph.norm(x, f"layers.{layer}.operator_norm")
        mixed = graph.convolution(normed, layer) if kind == "conv" else graph.attention(normed, layer)
        (states if kind == "conv" else caches).append(layer)
        x = graph.node("Add", x, mixed)
        x = graph.node("Add", x, graph.feed_forward(graph.norm(x, f"layers.{layer}.ffn_norm"), layer))
    turned = graph.node("Transpose", "embed_tokens", perm=[1, 0])
    graph.node("MatMul", graph.norm(x, "embedding_norm"), turned, outputs=["logits"])

    def value(name: str, *dims: int | str, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element, ["batch_size", *dims])

    def kept(length: str, *, is_past: bool) -> list[onnx.ValueInfoProto]:
        conv, cache = ("past_conv", "past_key_values") if is_past else ("present_conv", "present")
        values = [value(f"{conv}.{layer}", HIDDEN, COLUMNS) for layer in states]
        parts = ((layer, part) for layer in caches for part in ("key", "value"))
        return values + [value(f"{cache}.{layer}.{part}", KEY_HEADS, length, HEAD) for layer, part in parts]

    lengths = dict.fromkeys(("input_ids", "position_ids"), "sequence_length")
    lengths["attention_mask"] = "total_sequence_length"
    inputs = [value(name, length, element=TensorProto.INT64) for name, length in lengths.items()]
    inputs += kept("past_sequence_length", is_past=True)
    outputs = [value("logits", "sequence_length", TOKENS), *kept("total_sequence_length", is_past=False)]
    built = helper.make_graph(graph.nodes, "lfm2", inputs, outputs, list(graph.initializers.values()))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(built, opset_imports=opsets, ir_version=10)


def main() -> None:
    """Writes the decoder and prints the expected tokens."""
    torch.manual_seed(7)
    config = Lfm2Config(
        vocab_size=TOKENS,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=POSITIONS,
        conv_L_cache=COLUMNS,
        layer_types=["conv", "full_attention", "conv"],
        tie_word_embeddings=True,
    )
    model = Lfm2ForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0, 0.4)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    decoder = build(model)
    onnx.save(decoder, folder / "model.onnx")
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            # With a cache, transformers 4.57 continues a prompt of one token with other tokens.
            made = model.generate(
                ids, max_new_tokens=GENERATED, use_cache=False, eos_token_id=None, pad_token_id=0
            )
        print(made[0, len(prompt) :].tolist())


main()
