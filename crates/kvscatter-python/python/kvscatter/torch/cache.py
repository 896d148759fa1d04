"""A static cache for Hugging Face transformers that writes with ``kvscatter::tensor_scatter_``.

`KvCache` replaces `transformers.StaticCache`. It has the same shapes and works under `torch.compile` and
`torch.export` where that does. The keys and values of every sample are in memory that never moves. This
module needs transformers 5 and imports it.
"""

from __future__ import annotations

from typing import Any

import torch

from kvscatter import _integers, errors
from kvscatter.torch import tensor_scatter_

try:
    from transformers.cache_utils import Cache, StaticLayer, get_layer_types_and_kwargs
except ImportError as missing:
    raise ImportError(
        "kvscatter.torch.KvCache needs transformers 5: pip install kvscatter[transformers]"
    ) from missing

__all__ = ["KvCache", "KvLayer"]


class KvLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """The keys and values of one layer, ``[batch, heads, max_cache_len, head_size]`` each, written in place.

    Lengths, masks and the time of allocation are those of `StaticLayer`. Unlike `StaticLayer`, this layer
    can be cropped.
    """

    is_croppable = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes new keys and values after the old ones and returns the whole caches.

        Both are ``[batch, heads, rows, head_size]`` and may have any strides. If they do not fit, this
        raises `errors.PositionError` before anything is written. `StaticLayer` fails with an index error or
        a device assertion instead.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None, "they have been allocated above"
        start = self.cumulative_length.repeat(key_states.shape[0])  # a copy, which gradients need
        tensor_scatter_(self.keys, key_states, start)
        tensor_scatter_(self.values, value_states, start)
        self.cumulative_length.add_(key_states.shape[-2])
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` tokens, or all if there are fewer. The next tokens
        overwrite them.

        The number is 0 or negative, as in `DynamicLayer.crop`. A positive number raises
        `errors.OptionError`.
        """
        tokens_to_remove = _integers.within("tokens_to_remove", tokens_to_remove, -(2**63), 0)
        self.cumulative_length.add_(tokens_to_remove).clamp_(
            min=0
        )  # in place, because compiled graphs keep the address


class KvCache(Cache):
    """A cache of ``max_cache_len`` positions for the model of ``config``, in place of
    `transformers.StaticCache`.

    Every layer of the model must attend to all positions. A model with another kind of layer raises
    `errors.OptionError`.
    """

    def __init__(self, config: Any, max_cache_len: int) -> None:
        kinds, _ = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
        other = sorted(set(kinds) - {"full_attention"})
        if other:
            message = f"layers of type {', '.join(other)}: KvCache has layers of full attention only"
            raise errors.OptionError(message, "layer_type", "config")
        max_cache_len = _integers.within("max_cache_len", max_cache_len, 1, 2**63 - 1)
        super().__init__(layers=[KvLayer(max_cache_len) for _ in kinds])
