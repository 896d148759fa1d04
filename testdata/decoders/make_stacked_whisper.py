"""Makes an encoder and a decoder whose caches have all layers, with PyTorch 2.15.

The inputs and outputs are those of sherpa-onnx's Whisper. The decoder slices the used slots of the caches and
overwrites the last ones with the new rows.

python make_stacked_whisper.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, TOKENS, SLOTS, FRAMES, POSITIONS = 2, 16, 4, 64, 16, 8, 5


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attends with several heads, whose columns are side by side."""
    by_head = [rows.view(*rows.shape[:2], HEADS, -1).transpose(1, 2) for rows in (queries, keys, values)]
    scores = by_head[0] @ by_head[1].transpose(2, 3) * (WIDTH // HEADS) ** -0.5
    scores = scores if mask is None else scores + mask
    return (scores.softmax(-1) @ by_head[2]).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """A layer that attends to the tokens so far and to the positions of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.cross_query, self.cross_out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, cross: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Writes the last rows of the keys and the values, and attends to them."""
        new = x.shape[1]
        keys[:, -new:, :] = self.key(x)
        values[:, -new:, :] = self.value(x)
        x = x + self.out(attend(self.query(x), keys, values, mask))
        return x + self.cross_out(attend(self.cross_query(x), *cross))


class Decoder(nn.Module):
    """A decoder with the caches of all layers in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(torch.randn(SLOTS, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.register_buffer("mask", torch.full((SLOTS, SLOTS), -torch.inf).triu(1), persistent=False)

    def forward(
        self, tokens: Tensor, keys: Tensor, values: Tensor, cross_keys: Tensor, cross_values: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the logits and the caches."""
        start = offset[0]
        end = start + tokens.shape[1]
        x = self.embeddings(tokens) + self.positions[start:end]
        mask = self.mask[start:end, :end]
        for i, layer in enumerate(self.layers):
            own_keys, own_values = keys[i, :, :end, :], values[i, :, :end, :]
            x = layer(x, own_keys, own_values, (cross_keys[i], cross_values[i]), mask)
            keys[i, :, :end, :] = own_keys
            values[i, :, :end, :] = own_values
        return x @ self.embeddings.weight.T, keys, values


class Encoder(nn.Module):
    """An encoder that computes the keys and the values of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.states = nn.Linear(FRAMES, WIDTH)
        self.keys, self.values = (nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)) for _ in range(2))

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values, `[layers, samples, positions, width]`."""
        states = self.states(mel.transpose(1, 2)).tanh()
        keys, values = ([part(states) for part in parts] for parts in (self.keys, self.values))
        return torch.stack(keys), torch.stack(values)


def export(module: nn.Module, path: Path, inputs: dict[str, Tensor], outputs: list[str]) -> None:
    """Exports a module. Tensors with all layers have the samples in dimension 1, the others in dimension 0."""
    first = {name: {1: "n_audio"} if tensor.dim() == 4 else {0: "n_audio"} for name, tensor in inputs.items()}
    first |= {"tokens": {0: "n_audio", 1: "n_tokens"}, "offset": {}}
    axes = {name: dims for name, dims in first.items() if name in inputs}
    axes |= {name: {0: "n_audio", 1: "n_tokens"} if name == "logits" else {1: "n_audio"} for name in outputs}
    for weight in module.parameters():
        nn.init.normal_(weight, 0, 0.4)
    torch.onnx.export(
        module.eval(),
        tuple(inputs.values()),
        str(path),
        input_names=list(inputs),
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def main() -> None:
    """Exports both models."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    caches = {f"in_n_layer_self_{part}_cache": torch.zeros(LAYERS, 2, SLOTS, WIDTH) for part in "kv"}
    cross = {f"n_layer_cross_{part}": torch.randn(LAYERS, 2, POSITIONS, WIDTH) for part in "kv"}
    tokens = torch.randint(0, TOKENS, (2, 3))
    inputs = {"tokens": tokens, **caches, **cross, "offset": torch.tensor([4])}
    with torch.no_grad():
        export(
            Decoder(),
            folder / "decoder.onnx",
            inputs,
            ["logits", "out_n_layer_self_k_cache", "out_n_layer_self_v_cache"],
        )
        export(Encoder(), folder / "encoder.onnx", {"mel": torch.randn(2, FRAMES, POSITIONS)}, list(cross))


main()
