"""Tiny models of ONNX Runtime GenAI: the one in `testdata`, and variants with what other families have."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SOURCE = Path(__file__).parents[4] / "testdata" / "genai-llama-gqa"
# The rows of the rotary tables, and so the most tokens of a text.
CONTEXT = 128
VOCABULARY = 256
HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 16
SCALE = 16.0


def attention(model: ModelProto) -> list[NodeProto]:
    """Returns the nodes that compute attention."""
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def set_attributes(nodes: list[NodeProto], **values: float) -> None:
    """Replaces attributes of nodes."""
    for node in nodes:
        for attribute in [each for each in node.attribute if each.name in values]:
            node.attribute.remove(attribute)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())


def add_sinks(model: ModelProto) -> None:
    """Adds a sink to each head, as gpt-oss has it."""
    sinks = np.linspace(-1, 2, HEADS, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(sinks, "sinks"))
    for node in attention(model):
        # The input after cos_cache, sin_cache, position_ids and attention_bias.
        node.input[11] = "sinks"


def window_and_sinks(model: ModelProto) -> None:
    """Gives all layers sinks and the last one a window, as gpt-oss has them."""
    add_sinks(model)
    set_attributes(attention(model)[-1:], local_window_size=8)


def separate_inputs(model: ModelProto) -> None:
    """Feeds queries, keys and values separately, as models that normalise them do, such as Qwen 3."""
    sizes = [HEADS * HEAD_SIZE, KEY_HEADS * HEAD_SIZE, KEY_HEADS * HEAD_SIZE]
    model.graph.initializer.append(numpy_helper.from_array(np.array(sizes), "split_sizes"))
    for node in attention(model):
        parts = [f"{node.name}/{part}" for part in "qkv"]
        split = helper.make_node("Split", [node.input[0], "split_sizes"], parts, axis=-1)
        model.graph.node.insert(list(model.graph.node).index(node), split)
        node.input[:3] = parts


def half_precision(model: ModelProto) -> None:
    """Computes attention in float16, with caches of float16."""
    for name in ("cos_cache", "sin_cache"):
        table = next(each for each in model.graph.initializer if each.name == name)
        table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table).astype(np.float16), name))
    for cache in [*model.graph.input, *model.graph.output]:
        if "key" in cache.name or "value" in cache.name:
            cache.type.tensor_type.elem_type = TensorProto.FLOAT16
    del model.graph.value_info[:]
    for node in attention(model):
        at = list(model.graph.node).index(node)
        given, result = node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{given}/half", f"{result}/half"
        after = helper.make_node("Cast", [node.output[0]], [result], to=TensorProto.FLOAT)
        before = helper.make_node("Cast", [given], [node.input[0]], to=TensorProto.FLOAT16)
        model.graph.node.insert(at + 1, after)
        model.graph.node.insert(at, before)


VARIANTS: dict[str, Callable[[ModelProto], None]] = {
    "llama": lambda model: None,
    "window": lambda model: set_attributes(attention(model), local_window_size=8),
    "softcap": lambda model: set_attributes(attention(model), softcap=2.0),
    "interleaved": lambda model: set_attributes(attention(model), rotary_interleaved=1),
    "no rotary": lambda model: set_attributes(attention(model), do_rotary=0),
    "separate inputs": separate_inputs,
    "sinks": add_sinks,
    "window and sinks": window_and_sinks,
    "float16": half_precision,
}


def write(variant: str, folder: Path) -> Path:
    """Writes a folder as `onnxruntime_genai` reads it."""
    model = onnx.load(SOURCE / "model.onnx", load_external_data=False)
    # Small tensors are inside the file, so that a variant can change them.
    tables = [each for each in model.graph.initializer if each.name in ("cos_cache", "sin_cache")]
    for table in tables:
        onnx.external_data_helper.load_external_data_for_tensor(table, str(SOURCE))
        table.data_location = TensorProto.DEFAULT
        del table.external_data[:]
    VARIANTS[variant](model)
    # The weights are random and small. Without a factor, all tokens would get almost the same attention.
    set_attributes(attention(model), scale=SCALE)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    shutil.copy(SOURCE / "model.onnx.data", folder)
    decoder = {
        "filename": "model.onnx",
        "head_size": HEAD_SIZE,
        "hidden_size": HEADS * HEAD_SIZE,
        "num_attention_heads": HEADS,
        "num_hidden_layers": len(attention(model)),
        "num_key_value_heads": KEY_HEADS,
        "session_options": {"provider_options": []},
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    settings = {
        "model": {
            "type": "llama",
            "decoder": decoder,
            "context_length": CONTEXT,
            "vocab_size": VOCABULARY,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "search": {"max_length": CONTEXT, "past_present_share_buffer": True},
    }
    (folder / "genai_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def providers(folder: Path) -> set[str]:
    """Returns the execution providers that ran attention, from the profiles in a folder."""
    events = [event for file in folder.glob("profile*.json") for event in json.loads(file.read_text())]
    runs = [event["args"] for event in events if event["name"].endswith("_kernel_time")]
    return {run["provider"] for run in runs if run["op_name"] == "GroupQueryAttention"}
