"""``torch.ops.kvscatter.attention``: the read as a PyTorch operator.

It is opaque to ``torch.compile`` and ``torch.export``. Its kernel passes memory to the compiled module, except for
queries of float64, which the compiled module does not support. `_attention_math` computes these.

``kvscatter::visible`` is the part of a read that has no derivative. It checks the call and returns which slots each
query sees. `_attention_math` composes the rest of PyTorch's own operators.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled

import kvscatter
from kvscatter import errors
from kvscatter._typing import AttentionLayout
from kvscatter.torch._attention_math import ReadArguments, composed, tensors, visibility
from kvscatter.torch._ops import Mode, is_symbol, value_count

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? lengths=None, Tensor? starts=None, bool causal=True, "
    "int? window=None, float? scale=None, float softcap=0.0, Tensor? mask=None, Tensor? sink=None, "
    "str mode='linear', str layout='bhsd', Tensor? k_scale=None, Tensor? v_scale=None, "
    "Tensor? block_tables=None, int? threads=None) -> Tensor"
)

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@torch.library.custom_op("kvscatter::attention", mutates_args=(), schema=_SCHEMA)
def attention(*arguments: Any) -> torch.Tensor:
    """The operator that ``kvscatter.torch.attention`` calls and documents."""
    call = ReadArguments(*arguments)
    if call.q.dtype is torch.float64:
        output = composed(call, torch.ops.kvscatter.visible.default(*call))
        return output.new_empty(output.shape).copy_(output)
    given = {name: _memory(tensor, name) for name, tensor in tensors(call).items()}
    _check_devices(call)
    if call.k.dim() == 4 and call.q.dim() == 4:  # otherwise the call below raises the error
        _check_lists(call)
    threads = torch.get_num_threads() if call.threads is None else call.threads
    options = {**call._asdict(), **given, "threads": threads}
    with _set_fwd_grad_enabled(False):
        result: torch.Tensor = kvscatter.attention(**options)
    return result


@torch.library.custom_op("kvscatter::visible", mutates_args=(), schema=_SCHEMA)
def visible(*arguments: Any) -> torch.Tensor:
    """Checks the arguments like `attention` and returns which slots each query sees without the mask, ``[batch,
    queries, slots]``."""
    call = ReadArguments(*arguments)
    q, k, v = _checked(call)
    # Without elements of values, nothing but the numbers is checked.
    with _set_fwd_grad_enabled(False):
        kvscatter.attention(
            _stand_in(q),
            _stand_in(k),
            _stand_in([*v[:3], 0]),
            call.lengths,
            starts=call.starts,
            mode=cast(Mode, call.mode),
            layout=cast(AttentionLayout, call.layout),
            causal=call.causal,
            window=call.window,
            block_tables=call.block_tables,
        )
    return visibility(call)


def _memory(tensor: torch.Tensor, argument: str) -> torch.Tensor:
    """Returns ``tensor`` detached from autograd. The compiled module reads rows whose elements are neighbours, so
    others are copied."""
    if tensor.layout is not torch.strided:
        message = f"{argument} is {tensor.layout}: only strided tensors can be read"
        raise errors.ArrayError(message, "layout", argument)
    tensor = tensor.detach()
    is_row = argument in ("q", "k", "v") and tensor.dim() > 0
    return tensor.contiguous() if is_row and tensor.stride(-1) != 1 and tensor.shape[-1] > 1 else tensor


# ── checks that do not depend on values ─────────────────────────────────────────────────────────────────────────


@attention.register_fake
def _(*arguments: Any) -> torch.Tensor:
    call = ReadArguments(*arguments)
    _checked(call)
    return call.q.new_empty([*call.q.shape[:3], call.v.shape[3]])


@visible.register_fake
def _(*arguments: Any) -> torch.Tensor:
    call = ReadArguments(*arguments)
    _checked(call)
    return call.q.new_empty([call.q.shape[0], call.queries, call.slots], dtype=torch.bool)


def _checked(call: ReadArguments) -> list[list[int]]:
    """Checks everything that does not depend on values, and returns the shapes of q, k and v without symbols. Symbolic
    sizes are checked when the traced program knows them."""
    _check_devices(call)
    _check_types(call)
    for argument, tensor in (("q", call.q), ("k", call.k), ("v", call.v)):
        _check_rank(argument, tensor, 4)
    if call.block_tables is not None:
        _check_rank("block_tables", call.block_tables, 2)
    shapes = _without_symbols(call)
    q, k, v = shapes
    kvscatter.prepare_attention(
        _stand_in(q),
        _stand_in(k),
        _stand_in(v),
        mode=cast(Mode, call.mode),
        layout=cast(AttentionLayout, call.layout),
        causal=call.causal,
        window=call.window,
        scale=call.scale,
        softcap=call.softcap,
        threads=call.threads,
        mask=_mask_stand_in(call, shapes),
        block_tables=None
        if call.block_tables is None
        else np.zeros((q[0], _known(call.block_tables.shape[1])), np.int32),
    )
    _check_lists(call)
    for argument, values in (("lengths", call.lengths), ("starts", call.starts)):
        batch = call.q.shape[0]
        count = value_count(argument, values, batch)
        if count not in (None, batch):
            message = f"{argument} has {count} elements, must have {batch}"
            raise errors.ShapeError(message, "list_length")
    return shapes


def _check_devices(call: ReadArguments) -> None:
    device = call.q.device
    for argument, tensor in tensors(call).items():
        if tensor.device.type not in ("cpu", "meta"):
            message = (
                f"{argument} is on {tensor.device}, but attention reads host memory: on a device, use "
                "scaled_dot_product_attention, FlexAttention or flash-attn"
            )
            raise errors.DeviceError(message, "device", argument, device=str(tensor.device))
        if tensor.device != device:
            message = (
                f"{argument} is on {tensor.device}, but q is on {device}: all must be on the same device"
            )
            raise errors.DeviceError(message, "device", argument, device=str(tensor.device))


def _check_types(call: ReadArguments) -> None:
    q, k = call.q.dtype, call.k.dtype
    floats = (*_FLOATS, torch.float64) if q is torch.float64 else _FLOATS
    for dtype, accepted in ((q, floats), (k, (*floats, torch.int8))):
        if dtype not in accepted:
            message = f"elements of type {dtype} are not supported, use float32, float16 or bfloat16"
            raise errors.ElementTypeError(message, "element_type")
    scales = (torch.float32, q) if q is torch.float64 else (torch.float32,)
    accepted_of: dict[str, tuple[torch.dtype, ...]] = {
        "v": (k,),
        "mask": (q, torch.bool),
        "sink": (q,),
        "k_scale": scales,
        "v_scale": scales,
    }
    given = tensors(call)
    for argument, accepted in accepted_of.items():
        if argument in given and given[argument].dtype not in accepted:
            message = f"{argument} is {given[argument].dtype}, must be {accepted[0]}"
            raise errors.ElementTypeError(message, "element_type_mismatch", argument)
    if (call.k_scale is None) != (call.v_scale is None):
        argument = "k_scale" if call.k_scale is None else "v_scale"
        message = f"{argument} is missing: codes need k_scale and v_scale"
        raise errors.OptionError(message, "scale_missing", argument)
    if (call.k_scale is not None) != (k is torch.int8):
        presence = "given" if k is torch.int8 else "absent"
        raise errors.OptionError(f"k_scale must be {presence}", "combination")
    if call.block_tables is not None and call.block_tables.dtype not in (torch.int32, torch.int64):
        message = f"block_tables holds {call.block_tables.dtype}: must hold integers"
        raise errors.ElementTypeError(message, "not_integers", "block_tables")


def _check_rank(argument: str, tensor: torch.Tensor, rank: int) -> None:
    if tensor.dim() != rank:
        message = f"{argument} has {tensor.dim()} dimensions, must have {rank}"
        raise errors.ShapeError(message, "rank", argument, rank=tensor.dim())


def _check_lists(call: ReadArguments) -> None:
    """Checks the shapes of tensors that the compiled module takes as lists of numbers."""
    heads, _ = _heads_and_rows(call.layout)
    kv_heads, slots = (call.k.shape[dimension] for dimension in _heads_and_rows(call.layout))
    wanted: list[tuple[str, torch.Tensor | None, list[int]]] = [
        ("sink", call.sink, [call.q.shape[heads]]),
        ("k_scale", call.k_scale, [call.k.shape[0], kv_heads, slots]),
        ("v_scale", call.v_scale, [call.k.shape[0], kv_heads, slots]),
    ]
    if call.k_scale is not None and call.k_scale.dim() == 2:
        wanted[1:] = [
            ("k_scale", call.k_scale, [kv_heads, call.k.shape[3]]),
            ("v_scale", call.v_scale, [kv_heads, call.v.shape[3]]),
        ]
    if call.block_tables is not None:
        _check_rank("block_tables", call.block_tables, 2)
        wanted.append(("block_tables", call.block_tables, [call.q.shape[0], call.block_tables.shape[1]]))
    for argument, tensor, shape in wanted:
        if tensor is None:
            continue
        message = f"{argument} has shape {tuple(tensor.shape)}, must have {tuple(shape)}"
        if tensor.dim() != len(shape):
            raise errors.ShapeError(message, "list_length", argument)
        for got, expected in zip(tensor.shape, shape, strict=True):
            if is_symbol(got) or is_symbol(expected):
                torch._check(got == expected, lambda message=message: message)
            elif got != expected:
                raise errors.ShapeError(message, "list_length", argument)


def _heads_and_rows(layout: str) -> tuple[int, int]:
    return (1, 2) if layout == "bhsd" else (2, 1)


def _known(size: int, instead: int = 1) -> int:
    return instead if is_symbol(size) else size


def _without_symbols(call: ReadArguments) -> list[list[int]]:
    """Returns the shapes of q, k and v, in which symbols are replaced by sizes that fit the others."""
    q, k, v = ([*tensor.shape] for tensor in (call.q, call.k, call.v))
    heads, rows = _heads_and_rows(call.layout)
    q[rows] = _known(q[rows])
    v[3] = _known(v[3])
    of_cache = [(k, 0), (v, 0)]
    _agree("batch", [(q, 0)] if call.block_tables is not None else [(q, 0), *of_cache])
    _agree("blocks", of_cache)
    _agree("head size", [(q, 3), (k, 3)])
    _agree("slots", [(k, rows), (v, rows)])
    is_open = is_symbol(q[heads]) or is_symbol(k[heads])
    if is_open:
        several, shared = q[heads], k[heads]
        torch._check(
            several % shared == 0, lambda: f"{several} heads of q are not a multiple of {shared} of k"
        )
    _agree("heads", [(k, heads), (v, heads)])
    if is_open:
        q[heads] = _known(q[heads], k[heads])
    return [q, k, v]


def _agree(name: str, places: list[tuple[list[int], int]]) -> None:
    """Replaces the symbols at these places of shapes by a known size, or 1. Symbols must be equal to the other
    sizes."""
    sizes = [shape[dimension] for shape, dimension in places]
    for size in sizes[1:]:
        if is_symbol(size) or is_symbol(sizes[0]):
            torch._check(size == sizes[0], lambda: f"sizes of {name} differ: {sizes}")
    known = next((size for size in sizes if not is_symbol(size)), 1)
    for (shape, dimension), size in zip(places, sizes, strict=True):
        shape[dimension] = _known(size, known)


def _mask_stand_in(call: ReadArguments, shapes: list[list[int]]) -> Any:
    """Returns an array of the mask's shape. Symbolic sizes must broadcast to those of the other tensors."""
    if call.mask is None:
        return None
    q, k, _ = shapes
    heads, rows = _heads_and_rows(call.layout)
    wanted = [call.q.shape[0], call.q.shape[heads], call.queries, call.slots]
    blocks = 1 if call.block_tables is None else _known(call.block_tables.shape[1])
    known = [q[0], q[heads], q[rows], k[rows] * blocks]
    shape = [*call.mask.shape]
    for back in range(1, min(len(shape), 4) + 1):
        got, expected = shape[-back], wanted[-back]
        if not is_symbol(got) and (got == 1 or not is_symbol(expected)):
            continue
        fits = got <= expected if back == 1 else got == expected
        torch._check(fits, lambda got=got, expected=expected: f"mask has size {got} instead of {expected}")
        shape[-back] = known[-back]
    return np.broadcast_to(np.empty(shape[-1:], np.bool_), shape)


def _stand_in(shape: list[int]) -> Any:
    """Returns an array of a shape, almost without memory."""
    return np.broadcast_to(np.empty(shape[-1], np.float32), shape)
