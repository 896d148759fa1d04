"""Attention for Hugging Face transformers: ``attn_implementation="kvscatter"``.

transformers makes a mask for each step and passes it to every layer. Most masks say what a few numbers say as well:
how many tokens there are, where padding on the left ends, and the size of a window. `_mask` returns these numbers as
`Seen`, and the attention reads only the slots that they name. Any other mask is made and read as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask
from transformers.modeling_utils import AttentionInterface

import kvscatter
from kvscatter.torch import _derivatives, attention

_C: Any = torch._C
"""PyTorch's stubs lack the functions that report whether something records the operators that are called."""

NAME = "kvscatter"
"""The name of the implementation."""


_TOKENS = "_kvscatter_tokens"
"""The attribute of a ring that has its number of tokens, and how many of the last ones the queries may see."""


class Seen(NamedTuple):
    """What the queries of a step see, in place of a mask. Positions count from the first row of the keys."""

    length: int
    """The number of tokens. The last query is the last of them."""
    starts: torch.Tensor | None
    """The first token of each sample after padding on the left. None means 0."""
    window: int | None
    """The number of positions that a query sees, its own included."""


def register() -> None:
    """Adds the implementation to those of transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, _mask)


def are_operators_recorded() -> bool:
    """Returns True if a program is compiled, exported or traced, or if a mode sees every operator."""
    if torch.compiler.is_compiling():  # compilers do not trace the rest
        return True
    return _C._len_torch_dispatch_stack() > 0 or _C._get_tracing_state() is not None


def is_plain(*tensors: torch.Tensor) -> bool:
    """Returns True if tensors are only memory of the CPU, so that a call needs none of PyTorch's operators."""
    if are_operators_recorded() or _derivatives.may_have_tangents():
        return False
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or tensor.requires_grad or not tensor.is_cpu:
            return False
    return not tensors[0].is_inference() or torch.is_inference_mode_enabled()


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Seen | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention in the form that transformers calls. Returns ``[batch, queries, heads, size]``.

    ``attention_mask`` is what `_mask` returned, a mask with 4 dimensions, or None if only causality hides something.
    """
    if dropout != 0.0:
        raise kvscatter.OptionError(
            f"dropout = {dropout}: {NAME} has none, use sdpa", "combination", "dropout"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sink": s_aux, "causal": causal}
    tokens, rows = getattr(key, _TOKENS, (None, 0))
    if tokens is not None and not isinstance(attention_mask, Seen):
        rows = rows if attention_mask is None else attention_mask.shape[-1]
        key, value = (_in_order(ring, tokens, rows) for ring in (key, value))
        tokens = None
    if isinstance(attention_mask, Seen):
        length, starts, window = attention_mask
        if tokens is not None:
            # The numbers of a ring count from the first token. It has older rows, which a window hides.
            first = tokens - length
            if starts is not None:
                starts = starts + first
            elif window is None:
                starts = [first] * key.shape[0]
            length, options["mode"] = tokens, "circular"
            options["lengths"] = [length] * key.shape[0]
        options |= {"starts": starts, "window": window, "causal": True}
    elif attention_mask is not None:
        options |= {"mask": attention_mask[..., : key.shape[2]], "causal": False}
    if s_aux is not None and not torch.is_grad_enabled():
        options["sink"] = s_aux = s_aux.detach()
    if is_plain(query, key, value, *(() if s_aux is None else (s_aux,))):
        # The kernel writes in the order that transformers needs next.
        out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        threads = torch.get_num_threads()
        kvscatter.attention(query, key, value, **options, threads=threads, out=out.transpose(1, 2))
        return out, None
    computed: torch.Tensor = attention(query, key, value, **options)
    return computed.transpose(1, 2).contiguous(), None


def as_ring(ring: torch.Tensor, tokens: int, rows: int) -> torch.Tensor:
    """Returns a view of a ring that `attention_forward` knows to be one of so many tokens. The queries of this step see
    none but the last ``rows`` of them."""
    view = ring.view(ring.shape)
    setattr(view, _TOKENS, (tokens, rows))
    return view


def _in_order(ring: torch.Tensor, tokens: int, rows: int) -> torch.Tensor:
    """Returns the last rows of a ring in the order of their positions."""
    slots = torch.arange(tokens - rows, tokens, device=ring.device) % ring.shape[2]
    return ring.index_select(2, slots)


def _mask(**arguments: Any) -> Seen | torch.Tensor | None:
    """Returns what the queries see, in the form that `attention_forward` takes. The arguments are those of the other
    mask functions of transformers."""
    return _seen(**arguments) or sdpa_mask(**{**arguments, "allow_is_causal_skip": False})


def _seen(
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    cache_position: torch.Tensor | None = None,
    q_length: int | None = None,
    q_offset: int | torch.Tensor | None = None,
    **_kwargs: Any,
) -> Seen | None:
    """Returns the numbers that say the same as a mask, or None if there are none."""
    is_known, window = _window(mask_function)
    if not is_known or are_operators_recorded():
        return None
    # Before transformers 5.4, mask functions get the positions of the queries.
    if cache_position is not None:
        end = int(cache_position[-1]) + 1
    elif q_length is not None and q_offset is not None:
        end = int(q_offset) + int(q_length)
    else:
        return None
    length = end - kv_offset
    # If there are more keys than tokens, `generate` may make the mask in advance, and passes it where only tensors fit.
    if length != kv_length or length <= 0:
        return None
    if attention_mask is None:
        return Seen(length, None, window)
    tokens = attention_mask[:, :end].bool()
    if tokens.shape[1] < end:
        return None
    if tokens.all():
        return Seen(length, None, window)
    starts = tokens.int().argmax(1)
    if not torch.equal(tokens.sum(1) + starts, torch.full_like(starts, end)):
        return None  # there is padding between tokens, or a sample without any
    return Seen(length, (starts - kv_offset).clamp(min=0), window)


def _window(mask_function: Any) -> tuple[bool, int | None]:
    """Returns whether a mask function is the causal rule, with a window or without, and the size of the window."""
    if mask_function is causal_mask_function:
        return True, None
    if getattr(mask_function, "__qualname__", "") != "and_masks.<locals>.and_mask":
        return False, None
    rules = _captured(mask_function).get("mask_functions", ())
    windows = [rule for rule in rules if rule is not causal_mask_function]
    if len(windows) != 1 or len(rules) != 2:
        return False, None
    (rule,) = windows
    if getattr(rule, "__qualname__", "") != "sliding_window_overlay.<locals>.inner_mask":
        return False, None
    window = _captured(rule).get("sliding_window")
    return isinstance(window, int) and window > 0, window


def _captured(function: Any) -> dict[str, Any]:
    """Returns the variables that a function has captured."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
