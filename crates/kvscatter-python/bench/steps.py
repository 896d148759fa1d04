"""Measures what steps and drafts cost, for docs/python/session.md.

    pip install kvscatter onnx onnx-ir onnxruntime
    PYTHONPATH=bench python crates/kvscatter-python/bench/steps.py [--quick] [--write-docs]

A generated decoder of 8 layers runs in ONNX Runtime on one thread. Its next token depends only on the position and
on the kind of the last token, so each kind of prompt is continued with a given text. All times are CPU times.
Measurements that are compared take turns.
"""

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import kvscatter
import pages

PAGE = pages.ROOT / "docs" / "python" / "session.md"
COMMAND = "python crates/kvscatter-python/bench/steps.py"

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, SIZE = 256, 1024, 8, 4, 2, 64
CAPACITY = 512
KIND = 256  # tokens of one kind
TEXTS = ("no repetition", "half repeated", "edited copies", "one phrase")
BATCHES = {
    "no repetition": (0,),
    "half repeated": (1,),
    "edited copies": (2,),
    "one phrase": (3,),
    "one of each": (0, 1, 2, 3),
}
WEIGHTS = ("float32", "4 bits")
CACHES = ("GroupQueryAttention", "TensorScatter")
# Every second layer is a causal convolution, which returns its state after the last token or its columns.
HYBRIDS = ("TensorScatter and states", "TensorScatter and columns")
PROMPT, TOKENS, DRAFT = 32, 320, 8


@cache
def texts() -> list[npt.NDArray[np.int64]]:
    """Returns a text of each kind, one token by position."""
    random = np.random.default_rng(1)
    fresh = random.integers(0, KIND, CAPACITY + 1)
    # Passages of 30 new tokens take turns with copies of 30 earlier ones.
    half = fresh.copy()
    for start in range(30, CAPACITY, 60):
        end = min(start + 30, half.size)
        source = random.integers(0, start - 29)
        half[start:end] = half[source : source + end - start]
    phrase = np.resize(random.integers(0, KIND, 24), CAPACITY + 1)
    # A third of the tokens of every copy differ.
    edited = np.where(random.random(CAPACITY + 1) < 1 / 3, fresh, phrase)
    return [of + kind * KIND for kind, of in enumerate((fresh, half, edited, phrase))]


class Decoder:
    """Builds a decoder with caches that are written in place."""

    def __init__(self, caches: str, batch: str | int = "batch") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(0)
        self.caches = caches
        self.batch = batch

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(operator, inputs, outputs, name=f"make_{outputs[0]}", **attributes)
        )
        return outputs[0]

    def linear(self, value: str, name: str, rows: int, columns: int, scale: float) -> str:
        weights = (self.random.standard_normal((rows, columns)) * scale).astype(np.float32)
        return self.node("MatMul", [value, self.constant(f"{name}_weights", weights)], [name])

    def declare(self, of: list[onnx.ValueInfoProto], name: str, element: int, *shape: str | int) -> str:
        of.append(helper.make_tensor_value_info(name, element, [self.batch, *shape]))
        return name

    def attention(self, layer: int, query: str, key: str, value: str) -> str:
        is_operator = self.caches == CACHES[0]
        sizes: dict[str, tuple[str | int, ...]] = {
            name: (KV_HEADS, name, SIZE) if is_operator else (CAPACITY, KV_HEADS * SIZE)
            for name in ("past", "total")
        }
        pasts = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        presents = [f"present.{layer}.{part}" for part in ("key", "value")]
        for past, present in zip(pasts, presents, strict=True):
            self.declare(self.inputs, past, TensorProto.FLOAT, *sizes["past"])
            self.declare(self.outputs, present, TensorProto.FLOAT, *sizes["total"])
        result = f"attended{layer}"
        if is_operator:
            inputs = [query, key, value, *pasts, "lengths", "longest"]
            return self.node(
                "GroupQueryAttention",
                inputs,
                [result, *presents],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
            )
        for past, present, rows in zip(pasts, presents, (key, value), strict=True):
            self.node("TensorScatter", [past, rows, "write_indices"], [present], axis=1)
        inputs = [query, *presents, "", "", "", "nonpad_kv_seqlen"]
        return self.node("Attention", inputs, [result], is_causal=1, q_num_heads=HEADS, kv_num_heads=KV_HEADS)

    def convolution(self, layer: int, value: str) -> str:
        past, present = (
            self.declare(of, f"{name}.{layer}.conv", TensorProto.FLOAT, HIDDEN, 2)
            for of, name in ((self.inputs, "past"), (self.outputs, "present"))
        )
        kernel = self.constant(
            f"kernel{layer}", self.random.standard_normal((HIDDEN, 1, 3)).astype(np.float32)
        )
        turned = self.node("Transpose", [value], [f"turned{layer}"], perm=[0, 2, 1])
        inputs, outputs = [turned, kernel, "", past], [f"columns{layer}", present]
        columns = self.node("CausalConvWithState", inputs, outputs, domain="com.microsoft")
        if self.caches == HYBRIDS[1]:
            joined = self.declare(self.outputs, f"{present}.columns", TensorProto.FLOAT, HIDDEN, "columns")
            self.node("Concat", [past, turned], [joined], axis=2)
        return self.node("Transpose", [columns], [f"convolved{layer}"], perm=[0, 2, 1])

    def build(self) -> onnx.ModelProto:
        ids = self.declare(self.inputs, "input_ids", TensorProto.INT64, "tokens")
        positions = self.declare(self.inputs, "position_ids", TensorProto.INT64, "tokens")
        if self.caches == CACHES[0]:
            mask = self.declare(self.inputs, "attention_mask", TensorProto.INT64, "total")
            one = self.constant("one", np.array([1]))
            counted = self.node("ReduceSum", [mask, one], ["counted"], keepdims=0)
            self.node("Cast", [self.node("Sub", [counted, one], ["less"])], ["lengths"], to=TensorProto.INT32)
            total = self.node("Gather", [self.node("Shape", [mask], ["shape"]), "index"], ["total_length"])
            self.constant("index", np.array(1))
            self.node("Cast", [total], ["longest"], to=TensorProto.INT32)
        else:
            for name in ("write_indices", "nonpad_kv_seqlen"):
                self.declare(self.inputs, name, TensorProto.INT64)
        # The row of a kind and a position is the code of the token after it.
        vocabulary = KIND * len(TEXTS)
        codes = self.random.standard_normal((vocabulary, HIDDEN)).astype(np.float32)
        rows = np.concatenate([codes[text[1:]] for text in texts()])
        kind = self.node("Div", [ids, self.constant("kind_size", np.array(KIND))], ["kind"])
        first = self.node("Mul", [kind, self.constant("capacity", np.array(CAPACITY))], ["first"])
        index = self.node("Add", [first, positions], ["row"])
        x = self.node("Gather", [self.constant("rows", rows), index], ["x"])
        for layer in range(LAYERS):
            query = self.linear(x, f"query{layer}", HIDDEN, HEADS * SIZE, 0.02)
            if self.caches in HYBRIDS and layer % 2 == 0:
                attended = self.convolution(layer, query)
            else:
                key, value = (
                    self.linear(x, f"{part}{layer}", HIDDEN, KV_HEADS * SIZE, 0.02)
                    for part in ("key", "value")
                )
                attended = self.attention(layer, query, key, value)
            mixed = self.linear(attended, f"mixed{layer}", HEADS * SIZE, HIDDEN, 0.002)
            x = self.node("Add", [x, mixed], [f"x{layer}"])
            inner = self.node(
                "Relu", [self.linear(x, f"inner{layer}", HIDDEN, INNER, 0.02)], [f"relu{layer}"]
            )
            x = self.node(
                "Add", [x, self.linear(inner, f"outer{layer}", INNER, HIDDEN, 0.001)], [f"y{layer}"]
            )
        self.node("MatMul", [x, self.constant("head", np.ascontiguousarray(codes.T))], ["logits"])
        self.declare(self.outputs, "logits", TensorProto.FLOAT, "tokens", vocabulary)
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def saved(folder: Path, weights: str, caches: str, batch: str | int = "batch") -> Path:
    """Saves a decoder and returns its path."""
    model = Decoder(caches, batch).build()
    if weights != WEIGHTS[0]:
        logging.disable(logging.INFO)
        quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        model = quantizer.model.model
    path = folder / f"{batch}.onnx"
    onnx.save(model, path)
    return path


def in_turn(rounds: int, *measured: Callable[[], float]) -> list[list[float]]:
    """Returns the results of each function, by function."""
    return [
        list(of) for of in zip(*[[function() for function in measured] for _ in range(rounds)], strict=True)
    ]


def step_seconds(session: kvscatter.KvSession, sample: kvscatter.Sample, before: int, count: int) -> float:
    """Returns the time of the processor of a step that feeds a sample of `before` tokens `count` more."""
    text = texts()[0]
    session.truncate(sample, 0)
    if before > 0:
        session.prefill({sample: text[:before]})
    began = time.process_time()
    session.prefill({sample: text[before : before + count]})
    return time.process_time() - began


def step_table(folder: Path, rounds: int) -> str:
    """Measures steps of one sample in a batch of 4."""
    lines = [
        "| weights | caches | 64 tokens in mid-cache | whole batch | prompt of 300 tokens | whole batch |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for weights in WEIGHTS:
        for caches in CACHES:
            models = [saved(folder, weights, caches, batch) for batch in ("batch", 4)]
            sessions = [kvscatter.KvSession(model, batch=4, capacity=CAPACITY, threads=1) for model in models]
            pairs = [(session, session.add()) for session in sessions]
            cells: list[str] = []
            for before, count in ((100, 64), (0, 300)):
                times = in_turn(rounds, *(partial(step_seconds, *pair, before, count) for pair in pairs))
                cells.extend(f"{statistics.median(of) * 1e3:.0f}" for of in times)
            lines.append(f"| {weights} | `{caches}` | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def decode_seconds(model: Path, kinds: tuple[int, ...], draft: int) -> tuple[float, kvscatter.Generated]:
    """Returns the time of the processor after the prompts, and the tokens."""
    times: list[float] = []
    done = kvscatter.generate(
        model,
        [texts()[kind][:PROMPT] for kind in kinds],
        TOKENS,
        convert=False,
        capacity=CAPACITY,
        threads=1,
        draft=draft,
        progress=lambda *_: times.append(time.process_time()),
    )
    return times[-1] - times[0], done


def draft_table(folder: Path, rounds: int) -> str:
    """Measures generation with and without drafts."""
    lines = [
        "| weights | caches | text | batch | tokens/s | with drafts | ratio | steps | accepted |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for weights in WEIGHTS:
        for caches in (*CACHES, *HYBRIDS):
            model = saved(folder, weights, caches)
            for text, kinds in BATCHES.items():
                for batch in (1, 4) if len(kinds) == 1 else (4,):
                    cells = compared(model, kinds * (batch // len(kinds)), rounds)
                    lines.append(f"| {weights} | `{caches}` | {text} | {batch} | {cells} |")
                    print(lines[-1], flush=True)
    return "\n".join(lines)


def compared(model: Path, kinds: tuple[int, ...], rounds: int) -> str:
    """Returns the cells of a row of the table of drafts."""
    results: dict[int, kvscatter.Generated] = {}

    def seconds(draft: int) -> float:
        taken, results[draft] = decode_seconds(model, kinds, draft)
        return taken

    times = in_turn(rounds, lambda: seconds(0), lambda: seconds(DRAFT))
    plain, drafted = results[0], results[DRAFT]
    assert plain.samples == drafted.samples
    rates = [plain.decoded / statistics.median(of) for of in times]
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return (
        f"{rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} "
        f"| {drafted.steps} of {plain.steps} | {drafted.accepted} of {drafted.drafted}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure one round")
    parser.add_argument("--write-docs", action="store_true", help="rewrite the tables of the page")
    options = parser.parse_args()
    rounds = 1 if options.quick else 7
    with tempfile.TemporaryDirectory() as folder:
        steps = step_table(Path(folder), rounds)
        drafts = draft_table(Path(folder), rounds)
    if options.write_docs:
        machine = pages.machine("onnxruntime")
        pages.write(PAGE, COMMAND, "\n\n".join([f"Measured on {machine}.", steps, drafts]))


if __name__ == "__main__":
    main()
