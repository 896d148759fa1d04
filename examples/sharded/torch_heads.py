"""Decodes one model in several processes that share its heads, with PyTorch's distributed tensors over gloo.

python torch_heads.py

Each process has some heads of every layer and writes their keys and values into its part of the caches. The
tokens are compared with those of one process without caches, and the communication is counted.
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import kvscatter.torch

PROCESSES = (1, 2, 4)
PROMPTS = [[11, 42, 7, 99, 23, 64], [5, 17]]
NEW_TOKENS, CAPACITY = 24, 32
VOCABULARY, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 128, 4, 8, 4, 16
HIDDEN, MLP_SIZE = HEADS * HEAD_SIZE, 256

# The shape of each weight, [out, in], and its sharded dimension. Weights that are sharded by their outputs need no
# communication. Those that are sharded by their inputs need an all-reduce.
WEIGHTS = {
    "query": ((HIDDEN, HIDDEN), 0),
    "key": ((KV_HEADS * HEAD_SIZE, HIDDEN), 0),
    "value": ((KV_HEADS * HEAD_SIZE, HIDDEN), 0),
    "out": ((HIDDEN, HIDDEN), 1),
    "up": ((MLP_SIZE, HIDDEN), 0),
    "down": ((HIDDEN, MLP_SIZE), 1),
}


class Decoder:
    """A decoder with random weights, rotary positions, and two queries for each head of the caches. Without caches,
    every step needs all tokens."""

    def __init__(self, processes: int, *, has_caches: bool = True) -> None:
        self.mesh = init_device_mesh("cpu", (processes,))
        torch.manual_seed(1)  # every process makes the same weights, and keeps its part
        self.layers = [
            {
                name: self.sharded(torch.randn(shape) / shape[1] ** 0.5, by)
                for name, (shape, by) in WEIGHTS.items()
            }
            for _ in range(LAYERS)
        ]
        self.embedding, self.output = torch.randn(2, VOCABULARY, HIDDEN)
        empty = torch.zeros(len(PROMPTS), KV_HEADS, CAPACITY, HEAD_SIZE)
        caches = [(self.sharded(empty, 1), self.sharded(empty, 1)) for _ in range(LAYERS)]
        self.caches = caches if has_caches else [None] * LAYERS
        self.lengths = torch.zeros(len(PROMPTS), dtype=torch.int64)
        self.communication = CommDebugMode()
        self.in_writes = 0

    def sharded(self, whole: torch.Tensor, dimension: int) -> DTensor:
        return distribute_tensor(whole.clone(), self.mesh, [Shard(dimension)], src_data_rank=None)

    def step(self, tokens: list[list[int]]) -> list[int]:
        """Feeds the next tokens of each sample, padded on the right. Returns the likeliest next tokens."""
        counts = torch.tensor([len(each) for each in tokens])
        width = max(len(each) for each in tokens)
        ids = torch.tensor([each + [0] * (width - len(each)) for each in tokens])
        positions = self.lengths[:, None] + torch.arange(width)
        hidden = DTensor.from_local(self.embedding[ids], self.mesh, [Replicate()], run_check=False)
        with self.communication:
            for weights, caches in zip(self.layers, self.caches, strict=True):
                hidden = hidden + self.attention(rms_norm(hidden), weights, caches, positions)
                active = F.silu(F.linear(rms_norm(hidden), weights["up"]))
                hidden = hidden + all_reduced(F.linear(active, weights["down"]))
        if self.caches[0]:
            self.lengths += counts  # the next token of a sample overwrites its padding
        last = hidden.to_local()[torch.arange(len(tokens)), counts - 1]
        return (last @ self.output.T).argmax(-1).tolist()

    def attention(
        self,
        hidden: DTensor,
        weights: dict[str, DTensor],
        caches: tuple[DTensor, DTensor] | None,
        positions: torch.Tensor,
    ) -> DTensor:
        query, key, value = (
            F.linear(hidden, weights[name]).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        seen = rotary(key, positions), value
        if caches:
            before = self.communication.get_total_counts()
            for cache, rows in zip(caches, seen, strict=True):
                kvscatter.torch.tensor_scatter_(cache, rows, self.lengths)
            self.in_writes += self.communication.get_total_counts() - before
            seen = caches
        # Each process needs only its own heads from here on.
        keys, values = (each.to_local() for each in seen)
        visible = torch.arange(keys.shape[2]) <= positions[:, None, :, None]
        attended = F.scaled_dot_product_attention(
            rotary(query, positions).to_local(), keys, values, attn_mask=visible, enable_gqa=True
        )
        heads = DTensor.from_local(
            attended.transpose(1, 2).flatten(2), self.mesh, [Shard(2)], run_check=False
        )
        return all_reduced(F.linear(heads, weights["out"]))


def rms_norm(hidden: DTensor) -> DTensor:
    return hidden * hidden.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


def rotary(heads: DTensor, positions: torch.Tensor) -> DTensor:
    """Turns each pair of numbers by an angle that grows with the position."""
    first, second = heads.to_local().chunk(2, dim=-1)
    angles = positions[:, None, :, None] / 10_000.0 ** (torch.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    turned = first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()
    return DTensor.from_local(torch.cat(turned, dim=-1), heads.device_mesh, heads.placements, run_check=False)


def all_reduced(parts: DTensor) -> DTensor:
    """Adds up what the processes contribute."""
    return parts.redistribute(placements=[Replicate()])


def decode(processes: int) -> tuple[list[list[int]], int, int]:
    """Returns the new tokens of each prompt, how often the last step communicated, and how often all writes did."""
    decoder = Decoder(processes)
    tokens = [[token] for token in decoder.step(PROMPTS)]
    for _ in range(NEW_TOKENS - 1):
        for sample, token in zip(tokens, decoder.step([each[-1:] for each in tokens]), strict=True):
            sample.append(token)
    return tokens, decoder.communication.get_total_counts(), decoder.in_writes


def decode_without_caches() -> list[list[int]]:
    """Returns the new tokens of each prompt. Every step computes all tokens again."""
    decoder, sequences = Decoder(1, has_caches=False), [list(prompt) for prompt in PROMPTS]
    for _ in range(NEW_TOKENS):
        for sequence, token in zip(sequences, decoder.step(sequences), strict=True):
            sequence.append(token)
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, PROMPTS, strict=True)]


def process(rank: int, processes: int, folder: str) -> None:
    """Decodes in one of the processes, and leaves the result of the first one in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store-{processes}", processes)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    if processes == 1:
        torch.save(decode_without_caches(), f"{folder}/expected")
    result = decode(processes)
    if rank == 0:
        torch.save(result, f"{folder}/result-{processes}")
    torch.distributed.barrier()
    # If Python ended while gloo's threads run, the process could abort (pytorch/pytorch#179291).
    os._exit(0)


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in PROCESSES:
            torch.multiprocessing.spawn(process, (processes, folder), nprocs=processes)
            results[processes] = torch.load(Path(folder) / f"result-{processes}")
        expected = torch.load(Path(folder) / "expected")
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        print(*prompt, "→", *tokens)
    print("\nprocesses  heads of each  communication of a step  in writes  tokens")
    for processes, (tokens, in_all, in_writes) in results.items():
        verdict = "correct" if tokens == expected else "WRONG"
        print(f"{processes:<9}  {KV_HEADS // processes:<13}  {in_all:<23}  {in_writes:<9}  {verdict}")
    if any(tokens != expected or in_writes > 0 for tokens, _, in_writes in results.values()):
        raise SystemExit("the processes do not decode as one process without caches does")


if __name__ == "__main__":
    main()
