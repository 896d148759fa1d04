"""The memory of llama.cpp, in tiny random models."""

from __future__ import annotations

import ctypes
import math
import tempfile
from typing import Any

import gguf
import llama_cpp
import numpy as np

from kvscatter.histories import Engine, Refused

VOCABULARY = 64
WIDTH = 32
INNER = 64
HEADS = 4
KV_HEADS = 2
HEAD_WIDTH = 8
WINDOW = 8
LAYERS = 2
ROOM = 512
"""The most tokens of a sequence."""
SEQUENCES = 6
"""Twice as many as samples, so that a reordering has copies before it removes the others."""

FEED_FORWARD = {
    "ffn_norm": (WIDTH,),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
ATTENTION = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "attn_v": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    **FEED_FORWARD,
}
NORMS = {"attn_q_norm": (HEAD_WIDTH,), "attn_k_norm": (HEAD_WIDTH,)}
COHERE = {name: shape for name, shape in ATTENTION.items() if name != "ffn_norm"}
CONVOLUTION = {
    "attn_norm": (WIDTH,),
    "shortconv.conv": (WIDTH, 3),
    "shortconv.in_proj": (3 * WIDTH, WIDTH),
    "shortconv.out_proj": (WIDTH, WIDTH),
    **FEED_FORWARD,
}
MAMBA = {
    "attn_norm": (WIDTH,),
    "ssm_in": (4 * WIDTH, WIDTH),
    "ssm_conv1d": (2 * WIDTH, 4),
    "ssm_conv1d.bias": (2 * WIDTH,),
    "ssm_x": (2 + 2 * 8, 2 * WIDTH),
    "ssm_dt": (2 * WIDTH, 2),
    "ssm_dt.bias": (2 * WIDTH,),
    "ssm_a": (2 * WIDTH, 8),
    "ssm_d": (2 * WIDTH,),
    "ssm_out": (WIDTH, 2 * WIDTH),
}


NO_LOG: Any = llama_cpp.llama_log_callback(lambda level, text, data: None)


class LlamaCpp(Engine):
    """A model of llama.cpp and its memory. Each sample is a sequence.

    Variants: ``plain`` (Llama), ``swa`` and ``swa-full`` (Cohere 2, with a full layer too), ``recurrent``
    (Mamba), ``hybrid`` and ``hybrid-rollback`` (LFM2, with states of convolutions, and with `n_rs_seq`). All
    have a unified buffer, except ``plain-streams`` and ``swa-streams``.
    """

    variants = (
        "plain",
        "plain-streams",
        "swa",
        "swa-full",
        "swa-streams",
        "recurrent",
        "hybrid",
        "hybrid-rollback",
    )
    vocabulary = VOCABULARY
    batch = SEQUENCES // 2
    ragged = True
    longest = 300
    edges = (256,)

    def __init__(self, variant: str = "plain") -> None:
        self.name = f"llama-cpp-python {llama_cpp.__version__}, {variant}"
        if variant not in self.variants:
            raise ValueError(f"variant {variant!r} is not one of {', '.join(self.variants)}")
        is_unified = not variant.endswith("streams")
        self.windows = (WINDOW,) if variant.startswith("swa") else ()
        self.capacity = None if is_unified else ROOM
        llama_cpp.llama_log_set(NO_LOG, None)
        llama_cpp.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.gguf"
            _write(variant.split("-")[0], path)
            parameters = llama_cpp.llama_model_default_params()
            self.model: Any = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            raise RuntimeError("llama_model_load_from_file returns NULL")
        sizes = llama_cpp.llama_context_default_params()
        sizes.n_ctx = sizes.n_batch = ROOM * SEQUENCES
        sizes.n_ubatch = 32
        sizes.n_seq_max = SEQUENCES
        sizes.n_threads = sizes.n_threads_batch = 1
        sizes.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        sizes.type_k = sizes.type_v = llama_cpp.GGML_TYPE_F32
        sizes.swa_full = variant == "swa-full"
        sizes.kv_unified = is_unified
        sizes.n_rs_seq = 4 if variant == "hybrid-rollback" else 0
        self.context: Any = llama_cpp.llama_init_from_model(self.model, sizes)
        self.memory: Any = llama_cpp.llama_get_memory(self.context)
        self.items: Any = llama_cpp.llama_batch_init(sizes.n_batch, 0, 1)
        self.window: int = llama_cpp.llama_model_n_swa(self.model)
        self.is_recurrent: bool = llama_cpp.llama_model_is_recurrent(
            self.model
        ) or llama_cpp.llama_model_is_hybrid(self.model)
        self.rollback: int = sizes.n_rs_seq

    def start(self, samples: int) -> None:
        """Clears the memory."""
        llama_cpp.llama_memory_clear(self.memory, True)
        self.sequences = list(range(samples))
        self.lengths = [0] * samples
        self.begun: list[int] = []
        self.free = list(range(samples, SEQUENCES))
        self.rolled_back: set[int] = set()

    def feed(self, rows: list[list[int]]) -> list[Any]:
        """Decodes one batch of the tokens of all samples."""
        items = self.items
        items.n_tokens = 0
        for sequence, length, row in zip(self.sequences, self.lengths, rows, strict=True):
            for position, token in enumerate(row, length):
                at = items.n_tokens
                items.token[at], items.pos[at] = token, position
                items.n_seq_id[at], items.seq_id[at][0] = 1, sequence
                items.logits[at] = 1
                items.n_tokens += 1
        status = llama_cpp.llama_decode(self.context, items)
        if status == 1:
            raise Refused("llama_decode finds no slots")
        if status:
            raise RuntimeError(f"llama_decode returns {status}")
        shape = (items.n_tokens, self.vocabulary)
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), shape).copy()
        self.lengths = [length + len(row) for length, row in zip(self.lengths, rows, strict=True)]
        self.rolled_back -= {sequence for sequence, row in zip(self.sequences, rows, strict=True) if row}
        return np.split(logits, np.cumsum([len(row) for row in rows])[:-1])

    def truncate(self, lengths: list[int]) -> None:
        """Removes the last tokens, if the memory can and still has those that the next token sees."""
        cut = [sample for sample, length in enumerate(lengths) if length < self.lengths[sample]]
        for sample in cut:
            first = llama_cpp.llama_memory_seq_pos_min(self.memory, self.sequences[sample])
            if self.window and lengths[sample] > 0 and first > max(0, lengths[sample] - self.window + 1):
                raise Refused("llama_memory_seq_pos_min is inside of the window")
        # Samples that are expected to be refused come first, so that nothing has changed yet.
        for sample in sorted(cut, key=lambda sample: self._can_remove(sample, lengths[sample])):
            sequence, length = self.sequences[sample], lengths[sample]
            if not llama_cpp.llama_memory_seq_rm(self.memory, sequence, length, -1):
                if self._can_remove(sample, length):
                    raise RuntimeError("llama_memory_seq_rm returns false")
                raise Refused("llama_memory_seq_rm returns false")
            if length:
                self.rolled_back.add(sequence)
            else:
                self.rolled_back.discard(sequence)
        self.lengths = list(lengths)

    def begin(self) -> None:
        """Remembers the lengths."""
        self.begun = list(self.lengths)

    def accept(self, counts: list[int]) -> None:
        """Removes the other tokens."""
        self.truncate([length + count for length, count in zip(self.begun, counts, strict=True)])

    def add(self) -> None:
        """Begins another sequence."""
        self.sequences.append(self.free.pop())
        self.lengths.append(0)

    def fork(self, sample: int) -> None:
        """Copies a sequence."""
        self.sequences.append(self._copied(sample))
        self.lengths.append(self.lengths[sample])

    def remove(self, sample: int) -> None:
        """Removes a sequence."""
        self._release(self.sequences.pop(sample))
        del self.lengths[sample]
        if sample < len(self.begun):
            del self.begun[sample]

    def reorder(self, parents: list[int]) -> None:
        """Copies the sequences of parents, and removes the old ones."""
        copies = [self._copied(parent) for parent in parents]
        for sequence in self.sequences:
            self._release(sequence)
        self.sequences = copies
        self.lengths = [self.lengths[parent] for parent in parents]

    def save(self, sample: int, path: str) -> None:
        """Saves a sequence. The file also stores tokens. Only their number matters here."""
        tokens = (llama_cpp.llama_token * self.lengths[sample])()
        sequence = self.sequences[sample]
        if not llama_cpp.llama_state_seq_save_file(
            self.context, path.encode(), sequence, tokens, len(tokens)
        ):
            raise Refused("llama_state_seq_save_file returns 0")

    def load(self, sample: int, path: str) -> None:
        """Loads a sequence, and removes the old one."""
        tokens, count = (llama_cpp.llama_token * (ROOM * SEQUENCES))(), ctypes.c_size_t()
        sequence = self.free.pop()
        if not llama_cpp.llama_state_seq_load_file(
            self.context, path.encode(), sequence, tokens, len(tokens), ctypes.byref(count)
        ):
            self._release(sequence)
            raise Refused("llama_state_seq_load_file returns 0")
        self._release(self.sequences[sample])
        self.sequences[sample] = sequence
        self.lengths[sample] = count.value

    def _can_remove(self, sample: int, length: int) -> bool:
        """Returns whether the states of a recurrent model can be taken back: by some tokens, and once."""
        if not self.is_recurrent or length == 0:
            return True
        return (
            self.lengths[sample] - length <= self.rollback and self.sequences[sample] not in self.rolled_back
        )

    def _copied(self, sample: int) -> int:
        sequence = self.free.pop()
        llama_cpp.llama_memory_seq_cp(self.memory, self.sequences[sample], sequence, -1, -1)
        return sequence

    def _release(self, sequence: int) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)
        self.rolled_back.discard(sequence)
        self.free.append(sequence)


def _write(kind: str, path: str) -> None:
    """Writes a model with random weights."""
    family = {"plain": "llama", "swa": "cohere2", "recurrent": "mamba", "hybrid": "lfm2"}[kind]
    writer = gguf.GGUFWriter(path, family)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(0 if kind == "recurrent" else INNER)
    writer.add_layer_norm_rms_eps(1e-6)
    heads = {"recurrent": 0, "hybrid": [0, KV_HEADS]}.get(kind, KV_HEADS)
    writer.add_head_count(0 if kind == "recurrent" else HEADS)
    writer.add_head_count_kv(heads)
    layers: list[dict[str, tuple[int, ...]]]
    match kind:
        case "plain":
            layers = [ATTENTION] * LAYERS
        case "swa":
            writer.add_layer_norm_eps(1e-6)
            writer.add_logit_scale(1.0)
            writer.add_sliding_window(WINDOW)
            writer.add_sliding_window_pattern(2)
            layers = [COHERE] * LAYERS
        case "recurrent":
            writer.add_ssm_conv_kernel(4)
            writer.add_ssm_inner_size(2 * WIDTH)
            writer.add_ssm_state_size(8)
            writer.add_ssm_time_step_rank(2)
            layers = [MAMBA] * LAYERS
        case _:
            writer.add_shortconv_l_cache(3)
            layers = [CONVOLUTION, {**ATTENTION, **NORMS}]
    random = np.random.default_rng(0)
    final = "token_embd_norm" if kind == "hybrid" else "output_norm"
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, WIDTH), final: (WIDTH,)}
    shapes |= {f"blk.{at}.{name}": shape for at, layer in enumerate(layers) for name, shape in layer.items()}
    for name, shape in shapes.items():
        weights = random.normal(size=shape)
        if name.endswith("ssm_a"):
            weights = -np.exp(weights)
        elif name.endswith("norm"):
            weights = 1 + weights / 8
        elif len(shape) > 1:
            weights *= 2 / math.sqrt(shape[-1])
        full = name if name.endswith((".bias", "ssm_a", "ssm_d")) else f"{name}.weight"
        writer.add_tensor(full, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
